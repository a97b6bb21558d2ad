{{/*
SPDX-License-Identifier: Apache-2.0
What the parts have in common. Most take a dict of the root, "root", and the
part's name, "part".
*/}}

{{- define "vernier.labels" -}}
app.kubernetes.io/name: vernier
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "vernier.metadata" -}}
name: vernier-{{ .part }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "vernier.labels" . | nindent 2 }}
{{- end }}

{{- define "vernier.image" -}}
image: {{ with .root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}vernier-{{ .part }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end }}

{{/* What every pod's spec has. */}}
{{- define "vernier.pod" -}}
{{- $values := index .root.Values .part -}}
serviceAccountName: vernier-{{ .part }}
priorityClassName: {{ $values.priorityClassName }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What the pods of Deployments have besides. */}}
{{- define "vernier.replica" -}}
{{ include "vernier.pod" . }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "vernier.labels" . | nindent 14 }}
securityContext:
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "vernier.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The Secret with a certificate that somebody else makes. */}}
{{- define "vernier.secret" -}}
{{- $certificate := .Values.webhook.certificate -}}
{{- if eq $certificate.source "secret" -}}
{{ required "webhook.certificate.secretName: name the Secret with tls.crt and tls.key" $certificate.secretName }}
{{- else -}}
vernier-webhook-certificate
{{- end -}}
{{- end }}

{{/* Arguments of the webhook, one per line. */}}
{{- define "vernier.webhook.args" -}}
{{- if ne .Values.webhook.certificate.source "self" }}
- --cert-dir=/certificate
{{- end }}
{{- with include "vernier.pods.args" . | trim }}
{{ . }}
{{- end }}
{{- with .Values.webhook.args }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /*
How pods are read: by the webhook, and by the allocator of templates of Kueue's Workloads.
*/}}
{{- define "vernier.pods.args" -}}
{{- with .Values.dialects }}
{{- if .enabled }}
- --dialects={{ join "," .enabled }}
- --gpushare-unit={{ .gpushareUnit }}
- --hami-default-mem={{ int .hamiDefaultMem }}
- --hami-default-cores={{ int .hamiDefaultCores }}
- --nvidia-replicas={{ int .nvidiaReplicas }}
{{- if .nvidiaTimeSlicing }}
- --nvidia-time-slicing
{{- end }}
{{- range $name, $other := .renamed }}
- --renamed-resource={{ $name }}={{ $other }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.webhook.minimumShare }}
{{- if int .memMiB }}
- --min-share-mem-mib={{ int .memMiB }}
{{- end }}
{{- if int .percent }}
- --min-share-percent={{ int .percent }}
{{- end }}
{{- end }}
{{- with .Values.webhook.computeShares }}
{{- $least := int $.Values.webhook.minimumShare.percent }}
{{- $rules := list }}
{{- range $namespace, $rule := . }}
{{- if and (ne (toString $rule) "required") (gt (int $rule) 0) (lt (int $rule) $least) }}
{{- fail (printf "webhook.computeShares.%s: %d is below webhook.minimumShare.percent, %d: raise it, or every pod that gets it is refused" $namespace (int $rule) $least) }}
{{- end }}
{{- $rules = append $rules (printf "%s=%s" $namespace (eq (toString $rule) "required" | ternary "required" (int $rule | toString))) }}
{{- end }}
- {{ printf "--compute-shares=%s" (join "," $rules) | quote }}
{{- end }}
{{- with .Values.webhook.allowedHostPaths }}
- --allowed-host-paths={{ join "," . }}
{{- end }}
{{- end }}

{{/*
The words of the dialects, as webhook/dialect has them: the API server itself
decides by these which pods the webhook sees.
*/}}
{{- define "vernier.dialects.words" -}}
gpushare:
  resources: [aliyun.com/gpu-mem, aliyun.com/gpu-count, aliyun.com/gpu-core.percentage]
  schedulers: [gpushare-scheduler]
hami:
  resources: [{{ range $i, $n := list "nvidia.com/gpu" "nvidia.com/gpumem" "nvidia.com/gpumem-percentage" "nvidia.com/gpucores" "nvidia.com/priority" }}{{ if $i }}, {{ end }}{{ get $.Values.dialects.renamed $n | default $n }}{{ end }}]
  schedulers: [hami-scheduler]
volcano:
  resources: [{{ range $n := list "volcano.sh/vgpu-number" "volcano.sh/vgpu-memory" "volcano.sh/vgpu-memory-percentage" "volcano.sh/vgpu-cores" }}{{ get $.Values.dialects.renamed $n | default $n }}, {{ end }}volcano.sh/gpu-memory, volcano.sh/gpu-number]
  schedulers: [volcano]
koordinator:
  resources: [nvidia.com/gpu, koordinator.sh/gpu, koordinator.sh/gpu.shared, koordinator.sh/gpu-core, koordinator.sh/gpu-memory, koordinator.sh/gpu-memory-ratio]
  schedulers: [koord-scheduler]
kai:
  resources: [nvidia.com/gpu]
  schedulers: [kai-scheduler, runai-scheduler]
  annotationPrefixes: [gpu-fraction, gpu-memory, nvidia.com/container.]
gpu-manager:
  resources: [tencent.com/vcuda-core, tencent.com/vcuda-memory]
  schedulers: [gpu-admission, gpu-quota-admission]
nvidia:
  resources: [nvidia.com/gpu.shared{{ if .Values.dialects.nvidiaTimeSlicing }}, nvidia.com/gpu{{ end }}]
{{- end }}

{{/* CEL: the resource n asks for a share. */}}
{{- define "vernier.dialects.resources" -}}
{{- $words := include "vernier.dialects.words" . | fromYaml -}}
{{- $names := list -}}
{{- range .Values.dialects.enabled }}{{ $names = concat $names (index $words .).resources }}{{ end -}}
n.startsWith('vernier.dev/')
{{- if $names }} || n in ['{{ uniq $names | join "', '" }}']{{ end }}
{{- end }}

{{/* CEL: the container c asks for a share, in no misspelt name. */}}
{{- define "vernier.dialects.names" -}}
{{- $words := include "vernier.dialects.words" . | fromYaml -}}
{{- $names := list "vernier.dev/gpu-core" "vernier.dev/gpu-mem" "vernier.dev/gpu-mem-mib" "vernier.dev/gpu" "vernier.dev/idle-core" "vernier.dev/idle-mem-mib" -}}
{{- range .Values.dialects.enabled }}{{ $names = concat $names (index $words .).resources }}{{ end -}}
{{ range $i, $n := uniq $names }}{{ if $i }} || {{ end }}'{{ $n }}' in c.resources.requests{{ end }}
{{- end }}

{{/* CEL: the template t names the scheduler of a dialect's system. */}}
{{- define "vernier.dialects.scheduled" -}}
{{- $words := include "vernier.dialects.words" . | fromYaml -}}
{{- $names := list -}}
{{- range .Values.dialects.enabled }}{{ $names = concat $names ((index $words .).schedulers | default list) }}{{ end -}}
{{- if $names }}t.spec.?schedulerName.orValue('') in ['{{ join "', '" $names }}'] ||{{ end }}
{{- end }}

{{/* CEL: the annotation k asks for a share. */}}
{{- define "vernier.dialects.prefixed" -}}
{{- $words := include "vernier.dialects.words" . | fromYaml -}}
{{- $prefixes := list -}}
{{- range .Values.dialects.enabled }}{{ $prefixes = concat $prefixes ((index $words .).annotationPrefixes | default list) }}{{ end -}}
{{- if $prefixes -}}
['{{ join "', '" $prefixes }}'].exists(p, k.startsWith(p)){{ end }}
{{- end }}

{{/* CEL: or an annotation does; of very many, the webhook itself looks for it. */}}
{{- define "vernier.dialects.annotations" -}}
{{- with include "vernier.dialects.prefixed" . -}}
|| size(object.metadata.annotations) > 256 || object.metadata.annotations.exists(k, {{ . }}){{ end }}
{{- end }}
