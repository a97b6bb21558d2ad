// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue/podgroup"
	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/manifest"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/simulate"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/podtemplate"
)

func (c *command) fitCommand() *cobra.Command {
	e := &explainer{command: c}
	cmd := c.sub("fit -f FILE", "Whether the pods in manifests would find room now, and where, without creating them", e.fit)
	cmd.Long = fmt.Sprintf(`Whether the pods in manifests would find room now, and where, without creating them.
They are placed one after the other on a copy of the ledgers: as many of each object as its
replicas or its parallelism say (%d at most), all or none of a gang. Nodes must be
acceptable to the scheduler's own filters (taints, affinities, CPU), and room that is reserved
for others is not counted; where you may not read what says so, that is said. The API server
is asked for one pod of each object, by a dry run, whether quotas, LimitRanges and policies
would refuse it. Quotas without scopes that you may list count the other pods, too.

The exit status is 1 where a pod would wait or be refused.`, simulate.MaxPods)
	cmd.Example = `  kubectl vernier fit -f pod.yaml
  kubectl vernier fit -f manifests/ --dialects all`
	e.addFlags(cmd)
	return cmd
}

const allowsFit = "The cluster role vernier-fit allows it: `kubectl create clusterrolebinding NAME --clusterrole=vernier-fit --user=YOU`"

// candidate is a pod of a manifest, and what came of placing it.
type candidate struct {
	view.Fitted
	// written is the pod as the manifest has it, pod as admission leaves it, and dry as the API server's
	// dry run does; nil where that was not asked, or refuses it.
	written, pod, dry *corev1.Pod
	group             podrequest.Group
	demand            *placement.Demand
	// overQuota of the pods find no room in the quota that the text names.
	overQuota int
	quota     string
	// unknown: it names a resource that there is not, unless it is of a class that the user may not read.
	unknown bool
	// room is what the webhook says of it; nil where it says nothing.
	room *fleet.Room
}

func (e *explainer) fit(ctx context.Context, r client.Reader) error {
	dialects, err := e.settings.Set()
	if err != nil {
		return err
	}
	given, err := e.read()
	if err != nil {
		return err
	}
	list, err := gpuClasses(ctx, r)
	if err != nil {
		return err
	}
	known := classes.Of(append(list, given.Classes...)...)
	reader := podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{Dialects: dialects, Classes: known})
	var all []*candidate
	for _, from := range given.Pods {
		one, err := read(reader, known, from, cmp.Or(from.Namespace, e.ns, "default"))
		if err != nil {
			return fmt.Errorf("%s: %s: %w", cmp.Or(from.File, "standard input"), from.Object, err)
		}
		all = append(all, one)
	}
	if err := e.dryRun(ctx, r, given.Classes, list != nil, all); err != nil {
		return err
	}
	ledgers, err := ledgers(ctx, r)
	if apierrors.IsForbidden(err) {
		return e.answered(all, err)
	} else if err != nil {
		return err
	}
	filters, unasked := e.filters(ctx)
	if unasked != nil {
		fmt.Fprintf(whole(e.errOut), "The scheduler's filters (taints, affinities, CPU) were not asked: %v. %s\n", unasked, allowsFit)
	}
	kept, err := e.kept(ctx, r, known, ledgers)
	if err != nil {
		fmt.Fprintf(whole(e.errOut), "Room that is reserved for others is not counted: %v. %s\n", err, allowsFit)
	}
	s := &simulation{cluster: simulate.New(ledgers, kept, filters), groups: given.Groups, namespace: cmp.Or(e.ns, "default")}
	for _, c := range all {
		c.SchedulerAsked = unasked == nil
	}
	if err := s.place(ctx, all); err != nil {
		return err
	}
	return e.printFits(all)
}

// dryRun asks the API server, which creates nothing, for what it would refuse each pod: quotas,
// LimitRanges, policies and webhooks have their say. Pods of a class that the manifests make are not
// asked about, since the server has not heard of it.
//
// Where the user may not read classes, the server decides which there are.
func (e *explainer) dryRun(ctx context.Context, r client.Reader, made []v1alpha1.GPUClass, classesRead bool, all []*candidate) error {
	api, is := r.(client.Client)
	if !is {
		return errors.New("the client cannot write")
	}
	forbidden := map[string]bool{}
	for _, c := range all {
		unknown := c.unknown && !classesRead
		if c.Verdict != view.VerdictAdmitted && !unknown || forbidden[c.written.Namespace] || slices.ContainsFunc(made, func(class v1alpha1.GPUClass) bool {
			_, of := podrequest.Units(cmp.Or(c.pod, c.written))[class.Name]
			return of
		}) {
			continue
		}
		pod := c.written.DeepCopy()
		pod.TypeMeta, pod.Name, pod.GenerateName = metav1.TypeMeta{}, "", "fit-" // one of that name may be there
		rooms, err := createDry(ctx, api, pod)
		if unknown && !apierrors.IsForbidden(err) {
			c.Verdict, c.Refusals = view.VerdictAdmitted, nil
		}
		switch {
		case err == nil:
			if c.dry = pod; len(rooms) > 0 { // another webhook may have ours called again
				c.room = &rooms[len(rooms)-1]
			}
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), `cannot create resource "pods"`):
			forbidden[pod.Namespace] = true
		case apierrors.IsNotFound(err) || lacksObject(err):
			fmt.Fprintf(whole(e.errOut), "%s: quotas, LimitRanges and policies were not asked: %s. Create that first, if it is not in the manifests.\n", c.Name(), oneLine(err.Error()))
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
			c.Verdict, c.Refusals = view.VerdictRefused, append(c.Refusals, view.Refusal{Message: err.Error()})
		default:
			return explain(err, "pods", pod.Namespace)
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(forbidden)) {
		fmt.Fprintf(whole(e.errOut), "Quotas, LimitRanges and policies were not asked: you may not create pods in namespace %s.\n", namespace)
	}
	return e.countQuotas(ctx, r, all)
}

// lacksObject reports whether the API server refuses a pod for want of an object, which may stand in
// the same manifests: it gives such errors no reason of their own.
func lacksObject(err error) bool {
	return strings.Contains(err.Error(), "error looking up service account") || strings.Contains(err.Error(), "no PriorityClass with name")
}

// kept is the room that the allocator keeps for pods that wait.
func (c *command) kept(ctx context.Context, r client.Reader, known *classes.Set, all []v1alpha1.SliceLedger) (view.Kept, error) {
	said, err := c.verdicts(ctx, "")
	var pods []corev1.Pod
	if err == nil && slices.ContainsFunc(said, model.KeepsRoom) {
		pods, err = unbound(ctx, r, "")
	}
	if apierrors.IsForbidden(err) {
		err = errors.New("you may not list events and pods in all namespaces")
	}
	return view.KeptFor(pods, said, known, all), err
}

// answered prints what the webhook says of room, where the user may not read the ledgers; err says so.
func (e *explainer) answered(all []*candidate, err error) error {
	if slices.ContainsFunc(all, func(c *candidate) bool { return c.Verdict == view.VerdictAdmitted && c.room == nil }) {
		for _, c := range all {
			if c.Verdict == view.VerdictAdmitted && e.output.forPeople() {
				fmt.Fprintln(whole(e.out), oneLine(c.Name()+": would be admitted; whether there is room is not known"))
			} else if e.output.forPeople() {
				fmt.Fprintln(whole(e.out), oneLine(c.Heading(false)))
			}
		}
		return err
	}
	e.leftOut("on which nodes there is room")
	fmt.Fprintln(whole(e.errOut), onlyDevices)
	for _, c := range all {
		if c.Verdict != view.VerdictAdmitted {
			continue
		}
		most := c.Pods - c.overQuota
		c.StartNow, c.Cause, c.Lacks = min(most, c.room.Pods), c.room.Cause, c.room.Why
		if c.room.Pods == fleet.MaxPods {
			c.StartNow = most
		} else if c.StartNow > 0 && c.StartNow < most {
			c.Cause, c.Lacks = cause.Insufficient, "there is room for no more"
		}
		c.addQuota()
	}
	return e.printFits(all)
}

func (e *explainer) printFits(all []*candidate) error {
	files := map[string]bool{}
	for _, c := range all {
		files[c.File] = true
	}
	var fits []view.Fitted
	var sections []section
	pods, waits := 0, 0
	for _, c := range all {
		fits = append(fits, c.Fitted)
		sections = append(sections, section{title: oneLine(c.Heading(len(files) > 1)), table: view.FitTable(c.Classes), none: "No room is looked for."})
		pods += c.Pods
		waits += c.Waits()
	}
	if len(sections) == 1 && e.output.forPeople() {
		fmt.Fprintln(whole(e.out), sections[0].title)
	}
	if err := e.output.print(e.out, e.errOut, view.NewList(view.KindFits, fits), sections...); err != nil {
		return err
	}
	if waits > 0 {
		return fmt.Errorf("%d of %d pods would wait or be refused", waits, pods)
	}
	return nil
}

// read reads a pod as admission does.
func read(reader *podtemplate.Reader, known *classes.Set, from manifest.Pod, namespace string) (*candidate, error) {
	reading, unreadable := reader.Read("", from.JSON)
	c := &candidate{Fitted: view.Fitted{ExplainedPod: view.Explain(from, reading, unreadable), File: from.File,
		Pods: from.Copies, Nodes: []view.NodePods{}, Classes: []view.NodeClass{}}}
	c.unknown = len(reading.Errors) > 0 && !slices.ContainsFunc(reading.Errors, func(err *field.Error) bool { return err.Type != field.ErrorTypeNotSupported })
	if c.Verdict != view.VerdictAdmitted && !c.unknown {
		return c, nil
	}
	c.written = &corev1.Pod{}
	if err := json.Unmarshal(from.JSON, c.written); err != nil {
		return nil, err
	}
	c.written.Namespace = namespace
	if c.unknown {
		return c, nil
	}
	var err error
	if c.pod, err = reading.Admitted(from.JSON); err != nil {
		return nil, err
	}
	c.pod.Namespace = namespace
	request := podrequest.Of(c.pod)
	c.group = request.Group
	c.demand, err = placement.DemandOf(request, known)
	return c, err
}

// simulation places candidates.
type simulation struct {
	cluster   *simulate.Cluster
	groups    []manifest.Group
	namespace string
}

// place places the candidates in their order, the pods of a gang with its first.
func (s *simulation) place(ctx context.Context, all []*candidate) error {
	done := map[podrequest.Group]bool{}
	for _, c := range all {
		if c.Verdict != view.VerdictAdmitted {
			continue
		}
		switch {
		case c.group == podrequest.Group{}:
			if _, err := s.one(ctx, c); err != nil {
				return err
			}
		case !done[c.group]:
			done[c.group] = true
			if err := s.gang(ctx, c.group, all); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *simulation) one(ctx context.Context, c *candidate) (simulate.Placed, error) {
	placed, err := s.cluster.Place(ctx, c.pod, c.demand, c.Pods-c.overQuota)
	c.StartNow, c.Nodes, c.Classes = len(placed.Nodes), view.OnNodes(placed.Nodes), placed.Classes
	if d := placed.Lacks; d != nil {
		c.Cause, c.Lacks = d.Cause(), d.String()
	} else if c.Pods > simulate.MaxPods {
		c.Lacks = fmt.Sprintf("the first %d are tried", simulate.MaxPods)
	}
	c.addQuota()
	return placed, err
}

// addQuota adds to what the pods lack that a quota has no room for all.
func (c *candidate) addQuota() {
	if c.overQuota > 0 {
		c.Cause, c.Lacks = cmp.Or(c.Cause, cause.Quota), strings.TrimPrefix(c.Lacks+"; "+c.quota, "; ")
	}
}

// gang places the pods of a gang: at least as many as must start together, or none.
func (s *simulation) gang(ctx context.Context, name podrequest.Group, all []*candidate) error {
	var members []*candidate
	var pods []*corev1.Pod
	copies := 0
	for _, c := range all {
		if c.Verdict != view.VerdictAdmitted {
			continue
		}
		if c.group == name {
			members, pods, copies = append(members, c), append(pods, c.pod), copies+c.Pods
		}
	}
	least := s.least(name, pods, copies)
	return s.cluster.Try(func() (done []simulate.Placed, enough bool, err error) {
		start := 0
		for _, c := range members {
			placed, err := s.one(ctx, c)
			if err != nil {
				return nil, false, err
			}
			c.Gang = name.String()
			done, start = append(done, placed), start+c.StartNow
		}
		if start >= least {
			return done, true, nil
		}
		for _, c := range members {
			c.StartNow, c.Nodes = 0, []view.NodePods{}
			c.Cause = cause.GangNoRoom
			c.GangLacking = fmt.Sprintf("%s starts with %d pods, and %d fit now", name, least, start)
		}
		return done, false, nil
	})
}

// least is how many pods of the group start together, as far as the manifests say; all of
// them where they don't.
func (s *simulation) least(name podrequest.Group, pods []*corev1.Pod, copies int) int {
	if name.API == podrequest.Kueue {
		if total, err := (&podgroup.Sizes{}).Min(name, pods); err == nil {
			return total
		}
	}
	at := slices.IndexFunc(s.groups, func(g manifest.Group) bool {
		return g.Name == name.Name && cmp.Or(g.Namespace, s.namespace) == name.Namespace
	})
	if at >= 0 && name.API != podrequest.Kueue {
		return s.groups[at].Min
	}
	return copies
}
