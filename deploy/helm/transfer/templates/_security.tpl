{{- define "transfer.tls" -}}
{{- if ne .Values.security.tls.mode "off" -}}true{{- end -}}
{{- end -}}

{{- define "transfer.token" -}}
{{- if ne .Values.security.token.mode "off" -}}true{{- end -}}
{{- end -}}

{{- define "transfer.tlsSecret" -}}
{{- default (printf "%s-tls" (include "transfer.fullname" .)) .Values.security.tls.secretName -}}
{{- end -}}

{{- /* The secret of trainers and tests. */ -}}
{{- define "transfer.clientTlsSecret" -}}
{{- default (include "transfer.tlsSecret" .) .Values.security.tls.clientSecretName -}}
{{- end -}}

{{- define "transfer.tokenSecret" -}}
{{- default (printf "%s-token" (include "transfer.fullname" .)) .Values.security.token.secretName -}}
{{- end -}}

{{- define "transfer.serverName" -}}
{{- default (printf "%s.internal" (include "transfer.fullname" .)) .Values.security.tls.serverName -}}
{{- end -}}

{{- /* All names of the certificate: the one that clients here expect, and those of services and pods. */ -}}
{{- define "transfer.certificateNames" -}}
{{- $full := include "transfer.fullname" . -}}
{{- $namespace := .Release.Namespace -}}
{{- $domain := .Values.clusterDomain -}}
{{- $names := list (include "transfer.serverName" .) "localhost" -}}
{{- range $host := list $full (printf "*.%s-headless" $full) (printf "%s-trainers" $full) (printf "*.%s-trainers" $full) (printf "%s-peer" $full) -}}
{{- $names = concat $names (list $host (printf "%s.%s" $host $namespace) (printf "%s.%s.svc" $host $namespace) (printf "%s.%s.svc.%s" $host $namespace $domain)) -}}
{{- end -}}
{{- toYaml (concat $names .Values.security.tls.extraNames | uniq) -}}
{{- end -}}

{{- define "transfer.securityEnvironment" -}}
{{- if include "transfer.tls" . }}
- {name: TRANSFER_TLS_CERT, value: /etc/transfer/tls/tls.crt}
- {name: TRANSFER_TLS_KEY, value: /etc/transfer/tls/tls.key}
- {name: TRANSFER_TLS_CA, value: /etc/transfer/tls/ca.crt}
- {name: TRANSFER_TLS_CLIENTS, value: {{ .Values.security.tls.clients }}}
- {name: TRANSFER_TLS_SERVER_NAME, value: {{ include "transfer.serverName" . | quote }}}
{{- end }}
{{- if include "transfer.token" . }}
- {name: TRANSFER_TOKEN_FILE, value: /etc/transfer/token/token}
{{- end }}
{{- if .Values.security.unauthenticated }}
- {name: TRANSFER_UNAUTHENTICATED, value: allow}
{{- end }}
- {name: TRANSFER_ENCRYPT, value: {{ .Values.security.encrypt }}}
{{- end -}}

{{- define "transfer.securityMounts" -}}
{{- if include "transfer.tls" . }}
- {name: tls, mountPath: /etc/transfer/tls, readOnly: true}
{{- end }}
{{- if include "transfer.token" . }}
- {name: token, mountPath: /etc/transfer/token, readOnly: true}
{{- end }}
{{- end -}}

{{- /* (root, tlsSecret). Readable by the pods' group alone: fsGroup. */ -}}
{{- define "transfer.securityVolumes" -}}
{{- if include "transfer.tls" .root }}
- name: tls
  secret:
    secretName: {{ .tlsSecret }}
    defaultMode: 0440
{{- end }}
{{- if include "transfer.token" .root }}
- name: token
  secret:
    secretName: {{ include "transfer.tokenSecret" .root }}
    defaultMode: 0440
    items:
      - {key: {{ .root.Values.security.token.key | quote }}, path: token}
{{- end }}
{{- end -}}
