// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"vernier.dev/vernier/allocator/state/resizing"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

const (
	resizedGPU = "GPU-0"
	deviceMem  = 1000
)

// limits are what is in force in containers, by the runtime's id. They outlive the agent.
type limits struct {
	mode.Mode
	has, used map[string]v1alpha1.Amounts
	// step is called before and after each change.
	step func()
}

func (l *limits) Recall(c mode.Container, _ []v1alpha1.SliceStatus) []ledger.Grant {
	has, runs := l.has[c.ID]
	if !runs {
		return nil
	}
	return []ledger.Grant{mode.Recalled(resizedGPU, has.Core, has.Mem, v1alpha1.ModeLimiter)}
}

func (l *limits) resize(c mode.Container, _ uint32, uuid string, core v1alpha1.Percent, mem v1alpha1.MiB) error {
	l.step()
	defer l.step()
	if used := l.used[c.ID].Mem; used > mem && mem < l.has[c.ID].Mem {
		return &layout.InfeasibleError{UUID: uuid, UsedBytes: used.Bytes(), LimitBytes: mem.Bytes()}
	}
	l.has[c.ID] = v1alpha1.Amounts{Core: core, Mem: mem}
	return nil
}

// errKilled ends an agent or an allocator at a step.
var errKilled = errors.New("killed")

// resizes is a node with an agent, an allocator, and pods whose owners ask for other amounts.
type resizes struct {
	t      *testing.T
	random *rand.Rand
	*limits
	// versions of the ledger, the newest last. Watches may be behind.
	versions []*v1alpha1.SliceLedger
	pods     map[types.UID]*corev1.Pod
	agent    *agent
	// settled is the version that the agent has read or written last: a container is created by
	// no older one (ledger.Cache.Behind). Empty while it has written nothing.
	settled string
	version int
	made    int
	refused int
	inTime  int
}

func newResizes(t *testing.T, seed uint64) *resizes {
	w := &resizes{t: t, random: rand.New(rand.NewPCG(seed, 1)), pods: map[types.UID]*corev1.Pod{},
		limits: &limits{has: map[string]v1alpha1.Amounts{}, used: map[string]v1alpha1.Amounts{}, step: func() {}}}
	l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "1", Generation: 1}}
	l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: resizedGPU, Core: v1alpha1.WholeGPU, Mem: deviceMem}}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	w.versions = []*v1alpha1.SliceLedger{l}
	w.restartAgent()
	return w
}

func (w *resizes) newest() *v1alpha1.SliceLedger { return w.versions[len(w.versions)-1] }

// watched is a version that a watch may show.
func (w *resizes) watched() *v1alpha1.SliceLedger {
	return w.versions[max(0, len(w.versions)-1-w.random.IntN(4))]
}

// watch shows the agent a version, unless it has a newer one.
func (w *resizes) watch(l *v1alpha1.SliceLedger) {
	if version := must.Get(strconv.Atoi(l.ResourceVersion))(w.t); version > w.version {
		w.version = version
		w.agent.ledger.Set(l)
	}
}

// write is the API server's compare-and-swap, with its rule.
func (w *resizes) write(l *v1alpha1.SliceLedger, spec bool) bool {
	if l.ResourceVersion != w.newest().ResourceVersion {
		return false
	}
	if spec {
		l.Generation++
		var core v1alpha1.Percent
		var mem v1alpha1.MiB
		for _, s := range l.Spec.Devices[0].Slices {
			core, mem = core+s.Core, mem+s.Mem
		}
		if core > v1alpha1.WholeGPU || mem > deviceMem {
			w.t.Fatalf("a ledger with %d %% and %d MiB is written", core, mem)
		}
	}
	l.ResourceVersion = fmt.Sprint(len(w.versions) + 1)
	w.versions = append(w.versions, l)
	return true
}

// restartAgent is a new agent that finds the containers that run. Its watch may be behind.
func (w *resizes) restartAgent() {
	a := &agent{table: &attach.ContainerTable{}, ledger: &ledger.Cache{Node: "n"}, modes: mode.Set{v1alpha1.ModeLimiter: w.limits}}
	w.version = 0
	w.agent = a
	w.watch(w.watched())
	a.resizer = &resizer{
		index: a.ledger.Index, table: a.table, resize: w.resize, log: logr.Discard(),
		inForce: func(c mode.Container) []ledger.Grant { return w.Recall(c, nil) },
		notice:  func(mode.Container, time.Time, []ledger.Grant, time.Time) error { return nil }, deadlines: map[string]deadline{}, now: time.Now,
		fetch: func(context.Context) (*ledger.Index, error) {
			w.step()
			if w.settled != "" {
				w.settled = w.newest().ResourceVersion
			}
			return ledger.NewIndex(w.newest()), nil
		},
	}
	var found []attach.Entry
	for id := range w.has {
		pod := types.UID(id[:len(id)-2])
		e := attach.Entry{Prepared: true, PID: 1, Container: mode.Container{Pod: pod, Owner: "ns/" + string(pod), Name: "main", ID: id}}
		if e.Grants = a.ledger.Index().Grants(e.Key()); len(e.Grants) == 0 {
			e.Grants = w.Recall(e.Container, nil)
			e.Grants[0].DeviceMem = deviceMem
		} else {
			e.Grants = a.modes.AtLeast(e.Container)
		}
		e.Status = mode.Cooperative(e.Container)
		found = append(found, e)
	}
	a.table.Reset(found)
	w.agent, w.settled = a, ""
}

// kills does something of which one step may be the last.
func (w *resizes) kills(do func() error) (killed bool) {
	left := w.random.IntN(12)
	w.step = func() {
		if left--; left == 0 {
			panic(errKilled)
		}
	}
	defer func() {
		w.step = func() {}
		if cause := recover(); cause != nil {
			if cause != errKilled {
				panic(cause)
			}
			killed = true
		}
	}()
	must.Do(w.t, do())
	return false
}

// check compares what is in force with the device and with what is counted.
func (w *resizes) check() {
	w.t.Helper()
	var sum v1alpha1.Amounts
	for id, has := range w.has {
		sum = v1alpha1.Amounts{Core: sum.Core + has.Core, Mem: sum.Mem + has.Mem}
		s := w.slice(w.newest(), types.UID(id[:len(id)-2]))
		if s == nil || has.Core > s.Core || has.Mem > s.Mem {
			w.t.Fatalf("in force in %s are %+v, the ledger counts %+v", id, has, s)
		}
		if w.used[id].Mem > has.Mem {
			w.t.Fatalf("%s uses %d MiB of %d", id, w.used[id].Mem, has.Mem)
		}
	}
	if sum.Core > v1alpha1.WholeGPU || sum.Mem > deviceMem {
		w.t.Fatalf("in force are %+v together", sum)
	}
}

func (w *resizes) slice(l *v1alpha1.SliceLedger, pod types.UID) *v1alpha1.Slice {
	for i := range l.Spec.Devices[0].Slices {
		if s := &l.Spec.Devices[0].Slices[i]; s.Pod == pod {
			return s
		}
	}
	return nil
}

// act is one thing that happens.
func (w *resizes) act() {
	switch w.random.IntN(10) {
	case 0:
		w.place()
	case 1:
		w.end()
	case 2, 3:
		w.ask()
	case 4:
		w.allocate(w.watched().DeepCopy())
	case 5:
		w.allocate(w.newest().DeepCopy())
	case 6:
		w.watch(w.watched())
		w.start()
	case 7:
		w.watch(w.watched())
		if w.kills(func() error { return w.agent.resizer.all(w.t.Context()) }) {
			w.restartAgent()
		}
	case 8:
		w.publish()
	default:
		w.use()
	}
}

// place grants a new pod its slice, if there is room.
func (w *resizes) place() {
	l := w.newest().DeepCopy()
	share := v1alpha1.Amounts{Core: v1alpha1.Percent(1 + w.random.IntN(60)), Mem: v1alpha1.MiB(1 + w.random.IntN(600))}
	d := &l.Spec.Devices[0]
	left := v1alpha1.Amounts{Core: d.Core, Mem: d.Mem}
	for _, s := range d.Slices {
		left = v1alpha1.Amounts{Core: left.Core - s.Core, Mem: left.Mem - s.Mem}
	}
	if share.Core > left.Core || share.Mem > left.Mem {
		return
	}
	w.made++
	uid := types.UID(fmt.Sprint("pod", w.made))
	shares := must.Get((&v1alpha1.Shares{Version: v1alpha1.Version, Containers: map[string]v1alpha1.Share{"main": {GPUs: 1, Core: share.Core, MemMiB: share.Mem}}}).Encode())(w.t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: string(uid), UID: uid, Annotations: map[string]string{v1alpha1.AnnotationShares: shares}}}
	pod.Spec.NodeName, pod.Spec.Containers = "n", []corev1.Container{{Name: "main"}}
	d.Slices = append(d.Slices, v1alpha1.Slice{Pod: uid, Owner: "ns/" + string(uid), Ctr: "main", Core: share.Core, Mem: share.Mem})
	if w.write(l, true) {
		w.pods[uid] = pod
	}
}

// anyPod is one of the pods, nil where there is none.
func (w *resizes) anyPod() *corev1.Pod {
	uids := slices.Sorted(func(yield func(types.UID) bool) {
		for uid := range w.pods {
			if !yield(uid) {
				return
			}
		}
	})
	if len(uids) == 0 {
		return nil
	}
	return w.pods[uids[w.random.IntN(len(uids))]]
}

func (w *resizes) ask() {
	if pod := w.anyPod(); pod != nil {
		share := must.Get(v1alpha1.ParseShares(pod.Annotations[v1alpha1.AnnotationShares]))(w.t).Containers["main"]
		pod.Annotations[v1alpha1.AnnotationResize] = fmt.Sprintf(`{"main":{"core":%d,"memMiB":%d}}`, 1+w.random.IntN(int(share.Core)), 1+w.random.IntN(int(share.MemMiB)))
	}
}

// allocate takes the next step of a pod's resize, on a version of the ledger.
func (w *resizes) allocate(known *v1alpha1.SliceLedger) {
	pod := w.anyPod()
	if pod == nil || w.slice(known, pod.UID) == nil {
		return
	}
	next := resizing.Step(pod, known)
	if next.Ledger != nil && !w.write(next.Ledger, true) || next.Reason == "" {
		return
	}
	switch next.Reason {
	case resizing.ReasonInfeasible:
		w.refused++
	case resizing.ReasonDone:
		w.inTime++
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.PodConditionResize, Reason: next.Reason, Message: next.Message}}
}

// start starts a pod's container, or starts it again.
func (w *resizes) start() {
	pod := w.anyPod()
	if pod == nil {
		return
	}
	for _, e := range w.agent.table.Of(pod.UID) {
		w.agent.table.Detach(e.ID)
		delete(w.has, e.ID)
		delete(w.used, e.ID)
	}
	w.made++
	c := mode.Container{Pod: pod.UID, Owner: "ns/" + pod.Name, Name: "main", ID: fmt.Sprintf("%s.%d", pod.UID, w.made%10)}
	index := w.agent.ledger.Index()
	if w.settled == "" || w.version < must.Get(strconv.Atoi(w.settled))(w.t) {
		index = ledger.NewIndex(w.newest())
	}
	c.Grants = ledger.Initial(index.Grants(c.Key()))
	if len(c.Grants) == 0 || w.agent.table.Attach(attach.Entry{Container: c, Prepared: true}) != nil {
		return
	}
	status := mode.Cooperative(c)
	w.has[c.ID] = v1alpha1.Amounts{Core: c.Grants[0].Core, Mem: c.Grants[0].Mem}
	w.agent.table.Started(c.ID, 1, status, func([]v1alpha1.SliceStatus, cpuset.CPUSet) {})
}

// end ends a pod: its containers, then its slices.
func (w *resizes) end() {
	pod := w.anyPod()
	if pod == nil || w.random.IntN(3) > 0 {
		return
	}
	for _, e := range w.agent.table.Of(pod.UID) {
		w.agent.table.Detach(e.ID)
		delete(w.has, e.ID)
		delete(w.used, e.ID)
	}
	l := w.newest().DeepCopy()
	d := &l.Spec.Devices[0]
	d.Slices = slices.DeleteFunc(d.Slices, func(s v1alpha1.Slice) bool { return s.Pod == pod.UID })
	if w.write(l, true) {
		delete(w.pods, pod.UID)
	}
}

func (w *resizes) publish() {
	l := w.newest().DeepCopy()
	l.Status.Slices = w.agent.table.Slices()
	w.agent.drift(&l.Status)
	if w.write(l, false) && w.settled == "" {
		w.settled = l.ResourceVersion
	}
}

// use has a container use some of its memory.
func (w *resizes) use() {
	for id, has := range w.has {
		w.used[id] = v1alpha1.Amounts{Mem: v1alpha1.MiB(w.random.IntN(int(has.Mem) + 1))}
		return
	}
}

// What is in force is never more than what the ledger counts, nor than the device, whatever is
// interleaved, killed or seen late. When nothing more is asked for, each resize ends.
func TestResizeNeverExceeds(t *testing.T) {
	done, refused := 0, 0
	for seed := range uint64(300) {
		w := newResizes(t, seed)
		for range 400 {
			w.act()
			w.check()
		}
		w.settle()
		done, refused = done+w.inTime, refused+w.refused
	}
	if t.Logf("%d resizes done, %d refused", done, refused); done < 1000 || refused < 100 {
		t.Errorf("%d resizes done and %d refused: the test has tested nothing", done, refused)
	}
}

// settle has every part do its work with the newest of everything.
func (w *resizes) settle() {
	for range 4 {
		w.watch(w.newest())
		must.Do(w.t, w.agent.resizer.all(w.t.Context()))
		w.publish()
		for range 20 * len(w.pods) {
			w.allocate(w.newest().DeepCopy())
			w.check()
		}
	}
	for uid, pod := range w.pods {
		s := w.slice(w.newest(), uid)
		for _, e := range w.agent.table.Of(uid) {
			if has := w.has[e.ID]; s.Resize != nil || has != (v1alpha1.Amounts{Core: s.Core, Mem: s.Mem}) {
				w.t.Errorf("in the end %s has %+v in force, the ledger %+v; condition %+v", uid, has, s, pod.Status.Conditions)
			}
		}
	}
}
