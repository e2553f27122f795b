{{- define "transfer.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Short enough for every suffix here, and for the hash that Kubernetes puts behind a StatefulSet's name. */ -}}
{{- define "transfer.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "transfer.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "transfer.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "transfer.releaseLabels" -}}
app.kubernetes.io/name: {{ include "transfer.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* (root, component): the labels by which services and policies select pods. */ -}}
{{- define "transfer.selector" -}}
{{ include "transfer.releaseLabels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* (root, component), and `extra` labels. */ -}}
{{- define "transfer.labels" -}}
{{- $own := include "transfer.selector" . | fromYaml -}}
{{- $about := dict
      "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63)
      "app.kubernetes.io/version" .root.Chart.AppVersion
      "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- toYaml (merge $own $about (.extra | default dict) .root.Values.commonLabels) -}}
{{- end -}}

{{- /* (root, component, workload): of pods. Without the chart's version, which would restart all of them. */ -}}
{{- define "transfer.podLabels" -}}
{{- $own := include "transfer.selector" . | fromYaml -}}
{{- toYaml (merge $own (.workload.podLabels | default dict) .root.Values.commonLabels) -}}
{{- end -}}

{{- define "transfer.image" -}}
{{- $image := .Values.image -}}
{{- $variant := ternary "rdma" "tcp" (ne .Values.profile "tcp") -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default (printf "%s-%s" .Chart.AppVersion $variant) $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "transfer.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "transfer.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* The ports where the broker listens, by name: {name: port}. */ -}}
{{- define "transfer.brokerPorts" -}}
requests: 5580
pushes: 5581
subscriptions: 5582
http: 9180
{{- if .Values.broker.spool }}
spool: 5570
rows: 5571
{{- end }}
{{- with .Values.broker.fronts }}
{{- if .ttp }}
ttp: 59321
{{- end }}
{{- if .pybroker }}
pybroker: 9099
{{- end }}
{{- if .rqueue }}
rqueue: 6567
{{- end }}
{{- if .abtp }}
abtp: 5555
abtp-pub: 5556
{{- end }}
{{- end }}
{{- end -}}
