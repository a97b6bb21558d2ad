{{- /*
What the admission policies look for, in CEL. The API server prepares a pod for CEL, which
is most of what a policy costs, once for the match conditions of a policy and three times
more for its rules when they hold. So the rules stand in the condition as well: it holds
only where one of them does not, and a pod that is as it should be costs the first.
*/}}
{{- define "vernier.policy.containers" -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))
{{- end }}

{{- define "vernier.policy.now" -}}
has(object.metadata.annotations) ? object.metadata.annotations : {}
{{- end }}

{{- define "vernier.policy.asks" -}}
{{ include "vernier.policy.containers" . }}
.exists(c, has(c.resources) && (
has(c.resources.limits) && c.resources.limits.exists(n, n.startsWith('vernier.dev/')) ||
has(c.resources.requests) && c.resources.requests.exists(n, n.startsWith('vernier.dev/'))))
{{- end }}

{{- define "vernier.policy.shared" -}}
has(object.metadata.annotations) && 'vernier.dev/shares' in object.metadata.annotations
{{- end }}

{{- define "vernier.policy.gated" -}}
has(object.spec.schedulingGates) && object.spec.schedulingGates.exists(g, g.name == 'vernier.dev/placement')
{{- end }}

{{- define "vernier.policy.placed" -}}
has(object.metadata.annotations) && 'vernier.dev/placement' in object.metadata.annotations
{{- end }}

{{- /*
What the webhook writes for each container that asks: "NAME":{...}, by the arithmetic of
docs/reference/annotations.md. a is core, mem, mem-mib, gpus.
*/}}
{{- define "vernier.policy.written" -}}
{{ include "vernier.policy.containers" . }}
.filter(c, has(c.resources) && has(c.resources.limits) &&
c.resources.limits.exists(n, n.startsWith('vernier.dev/')))
.map(c, [['gpu-core', 'gpu-mem', 'gpu-mem-mib', 'gpu'].map(k, 'vernier.dev/' + k in c.resources.limits ?
quantity(c.resources.limits['vernier.dev/' + k]).asInteger() : 0)]
.map(a, [a[0], a[1], a[2], a[3] > 0 ? a[3] : a[0] > 100 ? (a[0] + 99) / 100 : 1])
.map(a, '"' + c.name + '":{"gpus":' + string(a[3]) +
(a[0] > 0 ? ',"core":' + string(a[0] / a[3]) : '') +
(a[2] > 0 ? ',"memMiB":' + string(a[2] / a[3]) :
',"memPercent":' + string((a[1] > 0 ? a[1] : a[0]) / a[3])) + '}')[0])
{{- end }}

{{- /*
A static pod, as its kubelet shows it to the API server: it runs whatever is said here, and
sees no GPU. Refused, it would be counted by its kubelet alone, and pods that the scheduler
sends there would fail. Anybody may write the annotation.
*/}}
{{- define "vernier.policy.static" -}}
has(object.metadata.annotations) && 'kubernetes.io/config.mirror' in object.metadata.annotations &&
has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups
{{- end }}

{{- define "vernier.policy.rule.seen" -}}
(!variables.asks || (variables.shared ? variables.gated :
{{ include "vernier.policy.static" . }}))
{{- end }}

{{- define "vernier.policy.rule.asks" -}}
!((variables.shared || variables.gated) && !variables.asks)
{{- end }}

{{- define "vernier.policy.rule.shares" -}}
!(variables.shared && !(
variables.now['vernier.dev/shares'].startsWith('{"version":"v1alpha1","containers":{"') &&
variables.now['vernier.dev/shares'].endsWith('}}}') &&
variables.written.all(w, variables.now['vernier.dev/shares'].contains(w)) &&
size(variables.now['vernier.dev/shares']) == size('{"version":"v1alpha1","containers":{}}') +
variables.written.map(w, size(w)).sum() + size(variables.written) - 1))
{{- end }}

{{- define "vernier.policy.rule.plugins" -}}
!(variables.shared && !('required-plugins.noderesource.dev/pod' in variables.now &&
variables.now.all(k, !(k == 'required-plugins.noderesource.dev/pod' ||
k.startsWith('required-plugins.noderesource.dev/container.')) || variables.now[k].contains('"vernier"') &&
variables.now[k].matches('^\\["[^"\\\\]*"(,"[^"\\\\]*")*]$'))))
{{- end }}

{{- define "vernier.policy.rule.tolerates" -}}
!(variables.shared && variables.now.exists(k,
k.startsWith('tolerate-missing-plugins.noderesource.dev') || k.startsWith('nvidia.cdi.k8s.io') ||
k.startsWith('cdi.k8s.io/')))
{{- end }}

{{- define "vernier.policy.rule.node" -}}
!(variables.shared && {{ include "vernier.policy.containers" . }}
{{ include "vernier.policy.opensTheNode" . }})
{{- end }}

{{- define "vernier.policy.rule.processes" -}}
!(variables.shared && (object.spec.?hostPID.orValue(false) || object.spec.?hostIPC.orValue(false)))
{{- end }}

{{- define "vernier.policy.rule.binding" -}}
!has(object.metadata.annotations) || !object.metadata.annotations.exists(k, k.startsWith('vernier.dev/') ||
k.startsWith('required-plugins.noderesource.dev') ||
k.startsWith('tolerate-missing-plugins.noderesource.dev') || k.startsWith('nvidia.cdi.k8s.io') ||
k.startsWith('cdi.k8s.io/'))
{{- end }}

{{- /* What no container beside a share may have: two policies refuse it. */}}
{{- define "vernier.policy.opensTheNode" -}}
.exists(c, has(c.securityContext) &&
(has(c.securityContext.privileged) && c.securityContext.privileged ||
has(c.securityContext.capabilities) && has(c.securityContext.capabilities.add) &&
c.securityContext.capabilities.add.exists(n, n.upperAscii().replace('CAP_', '') in ['ALL', 'BPF',
'DAC_READ_SEARCH', 'PERFMON', 'SYS_ADMIN', 'SYS_BOOT', 'SYS_MODULE', 'SYS_PTRACE', 'SYS_RAWIO'])))
{{- end }}

{{- define "vernier.policy.opensTheNode.message" -}}
a container of a pod with a vernier.dev share is privileged or adds a capability that opens the
node: remove it (kubectl debug: use --profile=baseline)
{{- end }}
