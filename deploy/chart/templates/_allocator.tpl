{{- /*
What the allocator's identity may change of a pod, in CEL. As in _policy.tpl the rules stand in
the match condition as well: the allocator's own patches are compared once. They are rules of
vernier-pod-changes: another policy would have the API server prepare each pod that anybody
changes for CEL once more, which is a sixth of what a kubelet's patch costs it.

The API server itself keeps a pod's status from a patch of the pod, and its spec from a patch of
its status.
*/}}
{{- define "vernier.allocator.is" -}}
request.userInfo.username == 'system:serviceaccount:vernier-system:vernier-allocator'
{{- end }}

{{- define "vernier.allocator.rule.shares" -}}
(oldObject != null && 'vernier.dev/shares' in oldObject.metadata.?annotations.orValue({}))
{{- end }}

{{- define "vernier.allocator.rule.shares.message" -}}
metadata.annotations[vernier.dev/shares]: the allocator may change and delete only pods that carry it:
use another identity for other pods
{{- end }}

{{- define "vernier.allocator.rule.subresource" -}}
(request.?subResource.orValue('') in ['', 'status'])
{{- end }}

{{- define "vernier.allocator.rule.metadata" -}}
(dyn(object.metadata).all(f, f in ['annotations', 'managedFields', 'resourceVersion', 'generation', 'deletionTimestamp',
'deletionGracePeriodSeconds'] || f in dyn(oldObject.metadata) && dyn(object.metadata)[f] == dyn(oldObject.metadata)[f]) &&
dyn(oldObject.metadata).all(f, f in ['annotations', 'deletionTimestamp', 'deletionGracePeriodSeconds'] ||
f in dyn(object.metadata)) &&
[[object, oldObject].map(o, o.metadata.?annotations.orValue({}))].all(a,
a[0].all(k, k == 'vernier.dev/placement' || k in a[1] && a[0][k] == a[1][k]) &&
a[1].all(k, k == 'vernier.dev/placement' || k in a[0])))
{{- end }}

{{- define "vernier.allocator.rule.spec" -}}
(request.?subResource.orValue('') != '' ||
dyn(object.spec).all(f, f in ['affinity', 'schedulingGates'] ||
f in dyn(oldObject.spec) && dyn(object.spec)[f] == dyn(oldObject.spec)[f]) &&
dyn(oldObject.spec).all(f, f in ['affinity', 'schedulingGates'] || f in dyn(object.spec)) &&
object.spec.?schedulingGates.orValue([]).filter(g, g.name != 'vernier.dev/placement') ==
oldObject.spec.?schedulingGates.orValue([]).filter(g, g.name != 'vernier.dev/placement'))
{{- end }}

{{- /*
The pin, as allocator/state/pin writes it: one more matchFields expression at the end of each term of
the required node affinity, metadata.name In [NODE], or a term of its own where there is none.
*/}}
{{- define "vernier.allocator.rule.pin" -}}
(request.?subResource.orValue('') != '' ||
object.spec.?affinity == oldObject.spec.?affinity ||
[[object, oldObject].map(o, o.spec.?affinity.orValue({}))].all(a,
a[0].?podAffinity == a[1].?podAffinity && a[0].?podAntiAffinity == a[1].?podAntiAffinity &&
a[0].?nodeAffinity.?preferredDuringSchedulingIgnoredDuringExecution ==
a[1].?nodeAffinity.?preferredDuringSchedulingIgnoredDuringExecution &&
[a.map(x, x.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms.orValue([]))].all(t,
size(t[0]) == (size(t[1]) == 0 ? 1 : size(t[1])) &&
t[0].all(i, n, size(t[1]) > 0 && n == t[1][i] ||
[size(t[1]) == 0 ? dyn({}) : dyn(t[1][i])].all(o,
n.?matchExpressions == o.?matchExpressions && size(n.?matchFields.orValue([])) > 0 &&
[n.matchFields[size(n.matchFields) - 1]].all(pin,
pin.key == 'metadata.name' && pin.operator == 'In' && size(pin.values) == 1 &&
n.matchFields == o.?matchFields.orValue([]) + [pin]))))))
{{- end }}

{{- define "vernier.allocator.rule.status" -}}
(request.?subResource.orValue('') != 'status' ||
dyn(object.status).all(f, f in ['conditions', 'nominatedNodeName'] ||
f in dyn(oldObject.status) && dyn(object.status)[f] == dyn(oldObject.status)[f]) &&
dyn(oldObject.status).all(f, f in ['conditions', 'nominatedNodeName'] || f in dyn(object.status)) &&
object.status.?conditions.orValue([]).filter(c, !c.type.startsWith('vernier.dev/')) ==
oldObject.status.?conditions.orValue([]).filter(c, !c.type.startsWith('vernier.dev/')))
{{- end }}

{{- /* For a match condition, and the rules that say what was wrong. */}}
{{- define "vernier.allocator.breaks" -}}
!({{ include "vernier.allocator.rule.shares" . }} &&
{{ include "vernier.allocator.rule.subresource" . }} &&
{{ include "vernier.allocator.rule.metadata" . }} &&
{{ include "vernier.allocator.rule.spec" . }} &&
{{ include "vernier.allocator.rule.pin" . }} &&
{{ include "vernier.allocator.rule.status" . }})
{{- end }}

{{- define "vernier.allocator.validations" -}}
- expression: >-
    !({{ include "vernier.allocator.is" . }}) ||
    {{ include "vernier.allocator.rule.shares" . | indent 4 | trim }}
  message: >-
    {{ include "vernier.allocator.rule.shares.message" . | indent 4 | trim }}
- expression: >-
    !({{ include "vernier.allocator.is" . }}) ||
    {{ include "vernier.allocator.rule.subresource" . | indent 4 | trim }}
  message: >-
    the allocator may write pods and pods/status only: use another identity for other subresources
- expression: >-
    !({{ include "vernier.allocator.is" . }}) ||
    {{ include "vernier.allocator.rule.metadata" . | indent 4 | trim }}
  message: >-
    metadata: the allocator may change the annotation vernier.dev/placement only: leave the rest as it is,
    and let no mutating webhook change the allocator's requests
- expression: >-
    !({{ include "vernier.allocator.is" . }}) ||
    {{ include "vernier.allocator.rule.spec" . | indent 4 | trim }}
  message: >-
    spec: the allocator may pin a pod and remove the scheduling gate vernier.dev/placement only: leave the
    rest as it is, and let no mutating webhook change the allocator's requests
- expression: >-
    !({{ include "vernier.allocator.is" . }}) ||
    {{ include "vernier.allocator.rule.pin" . | indent 4 | trim }}
  message: >-
    spec.affinity: the allocator may add matchFields metadata.name In [NODE] to each term of the required
    node affinity only: leave the rest as it is
- expression: >-
    !({{ include "vernier.allocator.is" . }}) ||
    {{ include "vernier.allocator.rule.status" . | indent 4 | trim }}
  message: >-
    status: the allocator may change conditions of type vernier.dev/* and nominatedNodeName only: leave the
    rest as it is
{{- end }}
