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
