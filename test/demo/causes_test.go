// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// holder has most of GPU 0, so that a pod of 60 % has room on GPU 1 alone.
const holder = "metadata: {name: holder, annotations: {vernier.dev/gpu-uuid: GPU0}}\nspec: {containers: [{limits: {vernier.dev/gpu-core: 60}}]}"

// tin is a class that no GPU serves, and ofTin a pod that asks for a unit of it.
const (
	tin   = "kubectl apply -f - <<'END'\napiVersion: vernier.dev/v1alpha1\nkind: GPUClass\nmetadata: {name: tin}\nspec: {models: [none-such], unit: {core: 50}}\nEND"
	noTin = "kubectl delete --ignore-not-found gpuclass tin"
	ofTin = "metadata: {name: p}\nspec: {containers: [{limits: {vernier.dev/gpu-tin: 1}}]}"
)

// deployed is a Deployment whose one pod asks for that much.
func deployed(core string) string {
	return "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: p}\nspec: {strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}, selector: {matchLabels: {app: p}}, " +
		"template: {metadata: {labels: {app: p}}, spec: {terminationGracePeriodSeconds: 2, containers: [{limits: {vernier.dev/gpu-core: " + core + "}}]}}}"
}

// ways to wait or to fail, on two GPUs. before makes what the first manifests need, then changes something
// once all is there, and of is a pod, or a workload whose pods or controller it is about. GPU0 stands for the
// UUID of the first GPU.
var ways = map[cause.Cause]struct{ before, manifests, then, after, of string }{
	cause.TooLarge:     {manifests: "metadata: {name: p}\nspec: {containers: [{limits: {vernier.dev/gpu-core: 10, vernier.dev/gpu-mem-mib: 900000}}]}"},
	cause.NotAllowed:   {manifests: "metadata: {name: p, annotations: {vernier.dev/gpu-model: none-such}}\nspec: {containers: [{limits: {vernier.dev/gpu-core: 10}}]}"},
	cause.NoGPUOfClass: {before: tin, manifests: ofTin, after: noTin},
	cause.NoClass:      {before: tin, manifests: ofTin, then: noTin, after: noTin},
	cause.Refused:      {manifests: deployed("101"), of: "deploy/p"},
	cause.NoScheduler:  {manifests: "metadata: {name: p}\nspec: {schedulerName: nobody, containers: [{limits: {vernier.dev/gpu-core: 10}}]}"},
	cause.Rollout: {manifests: holder + "\n---\n" + deployed("60"), of: "deploy/p",
		then: `kubectl rollout status deploy/p --timeout=2m && kubectl patch deploy p -p '{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}'`},
	cause.OtherGates:       {manifests: "metadata: {name: p}\nspec: {schedulingGates: [{name: example.com/hold}], containers: [{limits: {vernier.dev/gpu-core: 60}}]}"},
	cause.GangIncomplete:   {manifests: "metadata: {name: p, labels: {kueue.x-k8s.io/pod-group-name: g}, annotations: {kueue.x-k8s.io/pod-group-total-count: '2'}}\nspec: {containers: [{limits: {vernier.dev/gpu-core: 60}}]}"},
	cause.GangNoRoom:       {manifests: holder + "\n---\n" + gangMember("p") + "\n---\n" + gangMember("q")},
	cause.SchedulerRefuses: {manifests: "metadata: {name: p}\nspec: {nodeSelector: {gpu: a100}, containers: [{limits: {vernier.dev/gpu-core: 60}}]}"},
	cause.Insufficient:     {manifests: holder + "\n---\nmetadata: {name: p}\nspec: {containers: [{limits: {vernier.dev/gpu-core: 200}}]}"},
	cause.Excluded:         {manifests: holder + "\n---\nmetadata: {name: p, annotations: {vernier.dev/gpu-uuid: GPU0}}\nspec: {containers: [{limits: {vernier.dev/gpu-core: 60}}]}"},
	cause.NotGranted: {before: "kubectl vernier cordon " + node + "/0 " + node + "/1", after: "kubectl vernier uncordon " + node + "/0 " + node + "/1",
		manifests: "metadata: {name: p}\nspec: {containers: [{limits: {vernier.dev/gpu-core: 60}}]}"},
	cause.NotStarted:   {manifests: "metadata: {name: p}\nspec: {containers: [{image: example.invalid/none, limits: {vernier.dev/gpu-core: 10}}]}"},
	cause.Failed:       {manifests: "metadata: {name: p}\nspec: {containers: [{command: [/bin/sh, -c, exit 3], limits: {vernier.dev/gpu-core: 10}}]}"},
	cause.ClaimUnbound: {manifests: "metadata: {name: p}\nspec: {volumes: [{name: v, persistentVolumeClaim: {claimName: none}}], containers: [{limits: {vernier.dev/gpu-core: 10}}]}"},
	cause.Quota:        {before: "kubectl create quota few --hard=requests.vernier.dev/gpu-core=5", after: "kubectl delete quota few", of: "deploy/p", manifests: deployed("10")},
}

func gangMember(name string) string {
	return "metadata: {name: " + name + ", labels: {kueue.x-k8s.io/pod-group-name: g}, annotations: {kueue.x-k8s.io/pod-group-total-count: '2'}}\nspec: {containers: [{limits: {vernier.dev/gpu-core: 60}}]}"
}

// full are the manifests with what all pods have.
func full(short, uuid string) string {
	var all []string
	for one := range strings.SplitSeq(short, "\n---\n") {
		if !strings.Contains(one, "kind: ") {
			one = "apiVersion: v1\nkind: Pod\n" + one
			one = strings.Replace(one, "spec: {", "spec: {restartPolicy: Never, terminationGracePeriodSeconds: 2, ", 1)
		}
		if !strings.Contains(one, "image: ") {
			one = strings.Replace(one, "containers: [{", "containers: [{image: "+system.DemoImage+", ", 1)
		}
		if !strings.Contains(one, "command: ") {
			one = strings.Replace(one, "containers: [{", "containers: [{command: [/bin/cudademo, --hold], ", 1)
		}
		one = strings.Replace(one, "containers: [{", "containers: [{name: main, imagePullPolicy: Never, ", 1)
		one = strings.Replace(one, "limits: {", "resources: {limits: {", 1)
		i := strings.LastIndex(one, "resources: {limits: {")
		end := i + strings.Index(one[i:], "}") + 1
		all = append(all, one[:end]+"}"+one[end:])
	}
	return strings.ReplaceAll(strings.Join(all, "\n---\n"), "GPU0", uuid)
}

// said is what a place says of a pod.
type said struct {
	Cause cause.Cause `json:"cause"`
	Now   string      `json:"now"`
	Lacks string      `json:"lacks"`
}

// answer is what why says.
type answer struct {
	Items   []said `json:"items"`
	Refused []said `json:"refused"`
}

// first is what it says of the first that has a cause.
func (a answer) first() said {
	for _, s := range slices.Concat(a.Refused, a.Items) {
		if s.Cause != "" {
			return s
		}
	}
	return said{}
}

// waiting is a pod in the list of those that wait.
type waiting struct {
	said
	Pod    string
	Reason struct{ Message string }
}

// tenant may edit the namespace, and nothing beyond it.
const tenant = "ann"

// checkCauses makes pods wait and fail in each way, and compares what the allocator's event, why,
// waiting, fit and the page say of it, to an administrator and to a tenant.
func checkCauses(t *testing.T, sys *system.System, page func(context.Context) (string, error)) {
	bind := "kubectl create rolebinding tenant --clusterrole=edit --user=" + tenant
	if out, err := sys.Shell(t.Context(), bind); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := sys.Shell(context.Background(), "kubectl delete rolebinding tenant"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	uuid := must.Get(sys.Shell(t.Context(), "kubectl get sliceledger "+node+" -o jsonpath='{.status.devices[0].uuid}'"))(t)
	for of, way := range ways {
		t.Run(string(of), func(t *testing.T) {
			manifests := full(way.manifests, uuid)
			object := way.of
			if object == "" {
				object = "p"
			}
			run := func(script string) {
				if out, err := sys.Shell(t.Context(), script); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			t.Cleanup(func() {
				out, err := sys.Shell(context.Background(), "kubectl delete --ignore-not-found -f - <<'END'\n"+manifests+"\nEND\n"+way.after)
				if err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
			run(way.before)
			if strings.HasPrefix(manifests, "apiVersion: v1\nkind: Pod\nmetadata: {name: holder") {
				run("kubectl apply -f - <<'END'\n" + strings.Split(manifests, "\n---\n")[0] + "\nEND\nkubectl wait --for=condition=Ready pod/holder --timeout=2m")
			}
			// A class that has just been made is known within moments.
			eventually(t, "the manifests to be taken", func(ctx context.Context) (bool, string) {
				out, err := sys.Shell(ctx, "kubectl apply -f - <<'END'\n"+manifests+"\nEND\n")
				return err == nil, out
			})
			run(way.then)
			var why said
			eventually(t, "why to name the cause", func(ctx context.Context) (bool, string) {
				out, err := sys.Shell(ctx, "kubectl vernier why "+object+" -o json")
				if err != nil {
					return false, out
				}
				var all answer
				err = json.Unmarshal([]byte(out), &all)
				why = all.first()
				return err == nil && why.Cause == of, out
			})
			if out := must.Get(sys.Shell(t.Context(), "kubectl vernier why "+object))(t); !strings.Contains(out, string(of)+": "+of.Remedy()) {
				t.Errorf("why has no remedy:\n%s", out)
			}
			eventually(t, "why to say the same to a tenant", func(ctx context.Context) (bool, string) {
				var all answer
				out, err := sys.Shell(ctx, "kubectl vernier why "+object+" -o json --as "+tenant+" 2>/dev/null")
				if err != nil {
					return false, out
				}
				err = json.Unmarshal([]byte(out), &all)
				own := all.first()
				return err == nil && own.Cause == of && (own.Now == why.Now || own.Now == ""), out
			})
			gated := must.Get(sys.Shell(t.Context(), "kubectl get pods -o jsonpath='{.items[?(@.metadata.name==\"p\")].spec.schedulingGates[*].name}'"))(t)
			if gated == "" || of == cause.ClaimUnbound {
				return // it has its place, or its claim is the scheduler's to judge: only why knows
			}
			if of != cause.OtherGates {
				eventually(t, "the allocator's event to name the cause", func(ctx context.Context) (bool, string) {
					out, err := sys.Shell(ctx, "kubectl get events --field-selector involvedObject.name=p,reason=VernierWaiting -o jsonpath='{.items[*].metadata.annotations.vernier\\.dev/cause}'")
					return err == nil && strings.Contains(out, string(of)), out
				})
			}
			eventually(t, "waiting and the page to say the same", func(ctx context.Context) (bool, string) {
				var list struct{ Items []waiting }
				out, err := sys.Shell(ctx, "kubectl vernier waiting -o json")
				if err != nil {
					return false, out
				}
				if err := json.Unmarshal([]byte(out), &list); err != nil {
					return false, err.Error()
				}
				at := slices.IndexFunc(list.Items, func(w waiting) bool { return w.Pod == "p" })
				if at < 0 || list.Items[at].Cause != of {
					return false, out
				}
				sentence := list.Items[at].Now
				if sentence == "" {
					sentence = list.Items[at].Reason.Message
				}
				text, err := page(ctx)
				return err == nil && sentence != "" && strings.Contains(html.UnescapeString(text), sentence), fmt.Sprint(sentence, err, text)
			})
			if slices.Contains([]cause.Cause{cause.SchedulerRefuses, cause.Insufficient, cause.Excluded, cause.NotGranted, cause.TooLarge, cause.NotAllowed, cause.NoGPUOfClass}, of) {
				parts := strings.Split(manifests, "\n---\n")
				var fit struct{ Items []said }
				for _, user := range []string{"", " --as " + tenant} {
					if user != "" && of == cause.SchedulerRefuses {
						continue // the webhook answers a tenant of GPUs alone
					}
					// It fails where a pod would wait.
					out, _ := sys.Shell(t.Context(), "kubectl vernier fit -o json -f -"+user+" 2>/dev/null <<'END'\n"+parts[len(parts)-1]+"\nEND\n")
					if err := json.Unmarshal([]byte(out), &fit); err != nil || len(fit.Items) != 1 || fit.Items[0].Cause != of || why.Now != "" && fit.Items[0].Lacks != why.Now {
						t.Errorf("fit%s says another thing than %+v: %s", user, why, out)
					}
				}
			}
		})
	}
}
