{{- define "transfer.rdma" -}}
{{- if ne .Values.profile "tcp" -}}true{{- end -}}
{{- end -}}

{{- define "transfer.policy" -}}
{{- default (ternary "require" "" (ne .Values.profile "tcp")) .Values.transport.policy -}}
{{- end -}}

{{- define "transfer.rdmaResource" -}}
{{- if eq .Values.profile "rdma-shared" -}}
{{- default "rdma/hca_shared_devices_a" .Values.rdma.resourceName -}}
{{- else if eq .Values.profile "rdma-sriov" -}}
{{- .Values.rdma.resourceName -}}
{{- end -}}
{{- end -}}

{{- /* (root, policy, device): the preferred transport. */ -}}
{{- define "transfer.transportEnvironment" -}}
{{- if and .device (include "transfer.rdma" .root) }}
- {name: MC_RPC_PROTOCOL, value: rdma}
- {name: MC_RPC_POLICY, value: {{ .policy }}}
{{- with .root.Values.rdma }}
{{- if .devices }}
- {name: MC_RDMA_DEVICES, value: {{ .devices | quote }}}
{{- end }}
{{- if ne (toString .port) "" }}
- {name: MC_IB_PORT, value: {{ .port | toString | quote }}}
{{- end }}
{{- if ne (toString .gidIndex) "" }}
- {name: MC_GID_INDEX, value: {{ .gidIndex | toString | quote }}}
{{- end }}
{{- if ne (toString .mtu) "" }}
- {name: MC_MTU, value: {{ .mtu | toString | quote }}}
{{- end }}
{{- if ne (toString .trafficClass) "" }}
- {name: MC_IB_TC, value: {{ .trafficClass | toString | quote }}}
{{- end }}
{{- if ne (toString .serviceLevel) "" }}
- {name: MC_IB_SL, value: {{ .serviceLevel | toString | quote }}}
{{- end }}
{{- if ne (toString .pkeyIndex) "" }}
- {name: MC_PKEY_INDEX, value: {{ .pkeyIndex | toString | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* (root, resources, device): the user's resources, and the device in them. */ -}}
{{- define "transfer.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if .device -}}
{{- with include "transfer.rdmaResource" .root -}}
{{- $device := dict . (int $.root.Values.rdma.count) -}}
{{- $_ := set $resources "limits" (merge (deepCopy $device) (default dict $resources.limits)) -}}
{{- $_ := set $resources "requests" (merge (deepCopy $device) (default dict $resources.requests)) -}}
{{- end -}}
{{- if eq .root.Values.profile "dra" -}}
{{- $_ := set $resources "claims" (list (dict "name" "rdma")) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- /* (root, device): the pod annotation for the network of the device. */ -}}
{{- define "transfer.networkAnnotation" -}}
{{- if and .device .root.Values.rdma.networks }}
k8s.v1.cni.cncf.io/networks: {{ join "," .root.Values.rdma.networks | quote }}
{{- end }}
{{- end -}}

{{- /* (root, device) */ -}}
{{- define "transfer.containerSecurity" -}}
{{- $unlock := and .device (include "transfer.rdma" .root) (eq .root.Values.rdma.memlock "fileCapability") -}}
# Without no_new_privs off, the kernel ignores a file's capabilities.
allowPrivilegeEscalation: {{ ternary "true" "false" (not (not $unlock)) }}
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- if $unlock }}
  add: [IPC_LOCK]
{{- end }}
{{- end -}}

{{- /*
(root, component, workload, device): all of a pod's spec that does not depend on its containers.
workload: nodeSelector, tolerations, and perhaps affinity, priorityClassName, topologySpread.
*/ -}}
{{- define "transfer.podSpec" -}}
{{- $workload := .workload -}}
serviceAccountName: {{ include "transfer.serviceAccountName" .root }}
automountServiceAccountToken: false
# A service named "transfer" would add TRANSFER_PORT and more to every pod's environment.
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- if .root.Values.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
  fsGroupChangePolicy: OnRootMismatch
  {{- with .root.Values.podSecurityContext }}
  runAsUser: {{ int64 .runAsUser }}
  runAsGroup: {{ int64 .runAsGroup }}
  fsGroup: {{ int64 .fsGroup }}
  {{- with .supplementalGroups }}
  supplementalGroups: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- with $workload.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $workload.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $workload.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $workload.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $workload.topologySpread }}
{{- if .enabled }}
topologySpreadConstraints:
  - topologyKey: {{ .topologyKey }}
    maxSkew: {{ int .maxSkew }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels: {{ include "transfer.selector" $ | nindent 8 }}
{{- end }}
{{- end }}
{{- if and .device (eq .root.Values.profile "dra") }}
resourceClaims:
  - name: rdma
    resourceClaimTemplateName: {{ include "transfer.fullname" .root }}-rdma
{{- end }}
{{- end -}}
