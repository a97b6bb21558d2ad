{{- /*
What the admission policies look for, in CEL.

A tenant writes what they read, and the API server pays for it: about a microsecond for
each item of a list that an expression looks at. So every list is bounded by its size,
which costs nothing, before it is looked at, and what is beyond the bound is refused. The
numbers are those of api/v1alpha1/bounds.go; TestPolicyHasTheBounds compares them, and
TestHostileCosts adds up what the worst pods cost.

The API server prepares a pod for CEL, which is most of what a policy costs, once for the
match conditions of a policy and three times more for its rules when they hold. So the
rules stand in the condition as well: it holds only where one of them does not, and a pod
that is as it should be costs the first.
*/}}
{{- define "vernier.policy.containers" -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))
{{- end }}

{{- /* Every container has to be looked at: of more, nobody knows what they ask for. */}}
{{- define "vernier.policy.bounded" -}}
size(object.spec.containers) + (has(object.spec.initContainers) ? size(object.spec.initContainers) : 0) <= 512
{{- end }}

{{- define "vernier.policy.bounded.message" -}}
spec.containers: a pod may have at most 512 containers, init containers among them: make several pods of it
{{- end }}

{{- define "vernier.policy.now" -}}
has(object.metadata.annotations) && size(object.metadata.annotations) <= 256 ? object.metadata.annotations : {}
{{- end }}

{{- /*
Containers that ask for anything. Kubernetes makes requests of limits before anybody sees
the pod, so requests name all of it.
*/}}
{{- define "vernier.policy.requesting" -}}
{{ include "vernier.policy.bounded" . }} ?
{{ include "vernier.policy.containers" . }}.filter(c, has(c.resources) && has(c.resources.requests)) : []
{{- end }}

{{- /*
Those of them that ask for a share, by more than 0 of any name with our prefix, so that a
misspelt one is refused and does not wait for a node that has it. Where a pod names very many resources, a
container that names more than 4 is taken for one that asks: the name of a class may be any.
*/}}
{{- define "vernier.policy.ours" -}}
variables.requesting.map(c, size(c.resources.requests)).sum() <= 512 ?
variables.requesting.filter(c, c.resources.requests.exists(n, n.startsWith('vernier.dev/') && c.resources.requests[n] != '0')) :
variables.requesting.filter(c, size(c.resources.requests) > 4 || c.resources.requests.exists(n, n.startsWith('vernier.dev/') && c.resources.requests[n] != '0'))
{{- end }}

{{- /* Whether a pod asks, for conditions that need no more: a bounded pod's. */}}
{{- define "vernier.policy.asks" -}}
[{'requesting': dyn({{ include "vernier.policy.requesting" . }})}].exists(variables, size({{ include "vernier.policy.ours" . }}) > 0)
{{- end }}

{{- define "vernier.policy.shared" -}}
has(object.metadata.annotations) && 'vernier.dev/shares' in object.metadata.annotations
{{- end }}

{{- define "vernier.policy.gated" -}}
has(object.spec.schedulingGates) && size(object.spec.schedulingGates) <= 32 &&
object.spec.schedulingGates.exists(g, g.name == 'vernier.dev/placement')
{{- end }}

{{- define "vernier.policy.placed" -}}
has(object.metadata.annotations) && 'vernier.dev/placement' in object.metadata.annotations
{{- end }}

{{- /*
What the webhook writes for each container that asks: "NAME":{...}, by the arithmetic of
docs/reference/annotations.md. a is core, mem, mem-mib, gpus, and the amounts of an idle slice.
*/}}
{{- define "vernier.policy.written" -}}
size(variables.ours) > 16 ? [] : variables.ours.filter(c, has(c.resources.limits))
.map(c, [['gpu-core', 'gpu-mem', 'gpu-mem-mib', 'gpu', 'idle-core', 'idle-mem-mib'].map(k, 'vernier.dev/' + k in c.resources.limits ?
quantity(c.resources.limits['vernier.dev/' + k]).asInteger() : 0)]
.map(a, [a[0], a[1], a[2], a[3] > 0 ? a[3] : a[0] > 100 ? (a[0] + 99) / 100 : 1, a[4], a[5]])
.map(a, a[4] > 0 ? '"' + c.name + '":{"gpus":1,"memMiB":' + string(a[5]) + ',"idle":' + string(a[4]) + '}' :
'"' + c.name + '":{"gpus":' + string(a[3]) +
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
(size(variables.ours) == 0 || (variables.shared ? variables.gated :
{{ include "vernier.policy.static" . }}))
{{- end }}

{{- define "vernier.policy.rule.asks" -}}
!((variables.shared || variables.gated) && size(variables.ours) == 0)
{{- end }}

{{- define "vernier.policy.rule.size" -}}
!(variables.shared && (size(variables.ours) > 16 || size(object.metadata.annotations) > 256 ||
size({{ include "vernier.policy.containers" . }}) > 64))
{{- end }}

{{- define "vernier.policy.rule.shares" -}}
!(variables.shared && !(size(variables.ours) > 16 ||
object.metadata.annotations['vernier.dev/shares'].startsWith('{"version":"v1alpha1","containers":{"') &&
object.metadata.annotations['vernier.dev/shares'].endsWith('}}}') &&
variables.written.all(w, object.metadata.annotations['vernier.dev/shares'].contains(w)) &&
size(object.metadata.annotations['vernier.dev/shares']) == size('{"version":"v1alpha1","containers":{}}') +
variables.written.map(w, size(w)).sum() + size(variables.written) - 1))
{{- end }}

{{- /*
Lists of names as the webhook writes them: no quote but those around names. A container's own
form counts before the pod's; the forms without either are read by nobody beside these.
*/}}
{{- define "vernier.policy.rule.plugins" -}}
!(variables.shared && !('required-plugins.noderesource.dev/pod' in object.metadata.annotations &&
[variables.now.filter(k, k.startsWith('required-plugins.noderesource.dev/') && variables.now[k] != '["vernier"]')]
.all(l, size(l) <= 16 && l.all(k,
!(k == 'required-plugins.noderesource.dev/pod' || k.startsWith('required-plugins.noderesource.dev/container.')) ||
size(variables.now[k]) <= 4096 && variables.now[k].contains('"vernier"') && !variables.now[k].contains('\\') &&
variables.now[k].startsWith('["') && variables.now[k].endsWith('"]') &&
!variables.now[k].substring(2, size(variables.now[k]) - 2).replace('","', '').contains('"')))))
{{- end }}

{{- define "vernier.policy.rule.tolerates" -}}
!(variables.shared && variables.now.exists(k,
k.startsWith('tolerate-missing-plugins.noderesource.dev') || k.startsWith('nvidia.cdi.k8s.io') ||
k.startsWith('cdi.k8s.io/')))
{{- end }}

{{- define "vernier.policy.rule.node" -}}
!(variables.shared && size({{ include "vernier.policy.containers" . }}) <= 64 && [{{ include "vernier.policy.containers" . }}]
{{ include "vernier.policy.opensTheNode" . }})
{{- end }}

{{- define "vernier.policy.rule.processes" -}}
!(variables.shared && (object.spec.?hostPID.orValue(false) || object.spec.?hostIPC.orValue(false)))
{{- end }}

{{- /*
The folders of webhook/guard that open the node, and what is above one: it contains it.
/var/run is a link to /run.
*/}}
{{- define "vernier.policy.folders" -}}
sensitive: [/bin, /boot, /dev, /etc/cdi, /etc/cni, /etc/containerd, /etc/crio, /etc/cron.d, /etc/cron.daily,
  /etc/cron.hourly, /etc/cron.monthly, /etc/cron.weekly, /etc/crontab, /etc/docker, /etc/kubernetes,
  /etc/ld.so.cache, /etc/ld.so.conf, /etc/ld.so.conf.d, /etc/ld.so.preload, /etc/modprobe.d, /etc/modules-load.d,
  /etc/nri, /etc/nvidia-container-runtime, /etc/pam.d, /etc/passwd, /etc/shadow, /etc/ssh, /etc/sudoers,
  /etc/sudoers.d, /etc/systemd, /etc/udev, /home/kubernetes/bin, /lib, /lib64, /opt/cni, /opt/containerd,
  /opt/nri, /proc, /root, /run, /sbin, /sys, /usr/bin, /usr/lib, /usr/lib64, /usr/libexec, /usr/local, /usr/sbin,
  /var/lib/containerd, /var/lib/containers, /var/lib/docker, /var/lib/etcd, /var/lib/kubelet, /var/lib/rancher,
  /var/lib/vernier, /var/log, /var/run, /var/spool/cron]
harmless: [/dev/hugepages, /dev/infiniband, /dev/mqueue]
{{- end }}

{{- /* CEL: the folder p may be mounted. */}}
{{- define "vernier.policy.hostPaths" -}}
{{- with .Values.webhook.allowedHostPaths -}}
p.matches({{ include "vernier.policy.within" . }})
{{- else -}}
{{- $folders := include "vernier.policy.folders" . | fromYaml -}}
{{- $above := list "" -}}
{{- range $folders.sensitive }}
{{- $parts := splitList "/" . }}
{{- range $i := untilStep 2 (len $parts) 1 }}{{ $above = append $above (slice $parts 0 $i | join "/") }}{{ end }}
{{- end -}}
(!p.matches(r'^({{ $above | uniq | join "|" }})/?$') && !p.matches({{ include "vernier.policy.within" $folders.sensitive }}) ||
p.matches({{ include "vernier.policy.within" $folders.harmless }}))
{{- end -}}
{{- end }}

{{- /* CEL: a regular expression of what is in one of the folders. */}}
{{- define "vernier.policy.within" -}}
r'^({{ range $i, $f := . }}{{ if $i }}|{{ end }}{{ regexQuoteMeta $f }}{{ end }})(/|$)'
{{- end }}

{{- define "vernier.policy.rule.hostPaths" -}}
!(variables.shared && has(object.spec.volumes) && (size(object.spec.volumes) > 512 ||
[object.spec.volumes.filter(v, has(v.hostPath))].exists(h, size(h) > 32 || !h.map(v, v.hostPath.path).all(p,
size(p) <= 256 && p.startsWith('/') && !p.contains('//') && !p.contains('/./') && !p.endsWith('/.') &&
{{ include "vernier.policy.hostPaths" . }}))))
{{- end }}

{{- define "vernier.policy.rule.binding" -}}
!has(object.metadata.annotations) || size(object.metadata.annotations) <= 256 &&
!object.metadata.annotations.exists(k, k.startsWith('vernier.dev/') ||
k.startsWith('required-plugins.noderesource.dev') ||
k.startsWith('tolerate-missing-plugins.noderesource.dev') || k.startsWith('nvidia.cdi.k8s.io') ||
k.startsWith('cdi.k8s.io/'))
{{- end }}

{{- /*
What no container beside a share may have: two policies refuse it. A list of the pod's
containers goes before it. There are some 40 capabilities, and a container adds few.
The runtime makes names upper case by Unicode's rules, by which more letters than these become an I.
*/}}
{{- define "vernier.policy.opensTheNode" -}}
.exists(l, l.exists(c, has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged) ||
[l.filter(c, has(c.securityContext) && has(c.securityContext.capabilities) && has(c.securityContext.capabilities.add))]
.exists(a, a.map(c, size(c.securityContext.capabilities.add)).sum() > 256 ||
a.exists(c, c.securityContext.capabilities.add.exists(n, size(n) > 64 || !n.matches('^[A-Za-z0-9_]+$') ||
n.matches('(?i)^(CAP_)?(ALL|BPF|DAC_READ_SEARCH|PERFMON|SYS_ADMIN|SYS_BOOT|SYS_MODULE|SYS_PTRACE|SYS_RAWIO)$')))))
{{- end }}

{{- define "vernier.policy.opensTheNode.message" -}}
a container of a pod with a vernier.dev share is privileged or adds a capability that opens the
node (or the pod adds more than 256 of them): remove it (kubectl debug: use --profile=baseline)
{{- end }}

{{- /*
Kubelets and Kubernetes' own controllers, which delete what has ended or whose node is gone, and
who may drain nodes.
*/}}
{{- define "vernier.policy.operator" -}}
request.userInfo.?groups.orValue([]).exists(g, g in ['system:nodes', 'system:serviceaccounts:kube-system']) ||
request.userInfo.?username.orValue('') == 'system:kube-controller-manager' ||
authorizer.group('').resource('nodes').check('patch').allowed() ||
authorizer.group('vernier.dev').resource('sliceledgers').check('patch').allowed()
{{- end }}
