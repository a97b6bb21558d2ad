// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/refused"
)

const (
	// publishPeriod is the time between two writes of the object, in seconds. An hour has four.
	publishPeriod = hour / 4
	// spread is the time in seconds over which the nodes' writes are spread, after each quarter of an
	// hour. So that of a whole hour comes in its first five minutes.
	spread = 300
	// tryPeriod is the pause after a failed write.
	tryPeriod = time.Minute
	// conflicts in a row end a try.
	conflicts = 3
	// writeTimeout bounds one exchange with the API server.
	writeTimeout = 10 * time.Second
)

// slot is the time at which the node's account is to be published, the last one up to now.
func (a *Account) slot(now time.Time) int64 {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(a.from.Node)) // which never fails
	late := int64(sum.Sum32() % spread)
	at := now.Unix() - late
	return at - at%publishPeriod + late
}

// due reports whether the account is to be published.
func (a *Account) due(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if since := now.Sub(a.tried); !a.tried.IsZero() && since >= 0 && since < tryPeriod {
		return false
	}
	return !a.kept.Account.Through.IsZero() && a.slot(now) != a.kept.Slot
}

// adopt adds what the object has to an account that began without a file, once.
func (a *Account) adopt(ctx context.Context) error {
	a.mu.Lock()
	fresh := a.kept.Fresh
	a.mu.Unlock()
	if !fresh {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	u := &v1alpha1.SliceUsage{}
	if err := a.from.Live.Get(ctx, client.ObjectKey{Name: a.from.Node}, u); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading SliceUsage %s: %w", a.from.Node, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b := book{a.kept.Account}
	b.merge(&u.Status)
	b.Containers = nil
	a.kept.Account, a.kept.Fresh = b.SliceUsageStatus, false
	a.takeOver(u.Status.Containers, a.from.Now())
	return nil
}

// publish writes the object. Nobody else writes it, so that a conflict is with somebody who
// changed its metadata, or with an earlier write of ours.
func (a *Account) publish(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var err error
	for range conflicts {
		var u *v1alpha1.SliceUsage
		if u, err = a.object(ctx, now); err != nil {
			break
		}
		a.mu.Lock()
		u.Status = *a.kept.Account.DeepCopy()
		u.Status.Containers = a.published()
		a.mu.Unlock()
		if err = a.from.Live.Status().Update(ctx, u); !apierrors.IsConflict(err) {
			break
		}
	}
	if err != nil {
		refused.Count(refused.Usage, err)
		return fmt.Errorf("publishing SliceUsage %s: %w", a.from.Node, err)
	}
	a.mu.Lock()
	a.kept.Slot = a.slot(now)
	a.mu.Unlock()
	return nil
}

// object is the node's, which is made where it is missing. It lives as long as the Node.
func (a *Account) object(ctx context.Context, now time.Time) (*v1alpha1.SliceUsage, error) {
	u := &v1alpha1.SliceUsage{}
	err := a.from.Live.Get(ctx, client.ObjectKey{Name: a.from.Node}, u)
	if !apierrors.IsNotFound(err) {
		return u, err
	}
	node := &corev1.Node{}
	if err := a.from.Live.Get(ctx, client.ObjectKey{Name: a.from.Node}, node); err != nil {
		return nil, err
	}
	if err := a.restart(now); err != nil {
		return nil, err
	}
	u = &v1alpha1.SliceUsage{ObjectMeta: metav1.ObjectMeta{
		Name:            a.from.Node,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
	}}
	return u, a.from.Live.Create(ctx, u)
}
