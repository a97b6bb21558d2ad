// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/refused"
)

const (
	// settle gathers changes that come together into one write: every write
	// costs the allocator's next one a conflict.
	settle = 20 * time.Millisecond
	// pace is the least pause between two writes, for the same reason: while containers
	// come and go all the time, each is a change.
	pace = 50 * time.Millisecond
	// writeTimeout bounds one exchange with the API server.
	writeTimeout = 10 * time.Second
	minRetry     = 100 * time.Millisecond
	maxRetry     = 10 * time.Second
)

// Writer is the only writer of the ledger's status, and creates the ledger where
// it is missing.
type Writer struct {
	// Node is the node's name.
	Node string
	// Live reads from and writes to the API server, past every cache: a cache
	// that lags behind our own write would only cost a conflict.
	Live client.Client
	// Fill sets every field of the status from the agent's present state.
	Fill func(*v1alpha1.SliceLedgerStatus)
	// Cache learns which version it must have delivered.
	Cache *Cache
	Log   logr.Logger

	kick chan struct{}
	// writing is held in a write.
	writing *sync.Mutex
}

// NewWriter makes a writer.
func NewWriter(w Writer) *Writer {
	w.kick, w.writing = make(chan struct{}, 1), &sync.Mutex{}
	return &w
}

// Publish asks for a write. It never blocks; calls that come together are one.
func (w *Writer) Publish() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) error {
	w.Publish()
	retry := minRetry
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.kick:
		}
		wait(ctx, settle)
		if err := w.Write(ctx); err != nil && ctx.Err() == nil {
			if !apierrors.IsConflict(err) {
				w.Log.Error(err, "Cannot write the ledger's status; trying again", "after", retry)
			}
			wait(ctx, retry)
			retry = min(2*retry, maxRetry)
			w.Publish()
			continue
		}
		retry = minRetry
		wait(ctx, pace)
	}
}

// Write brings the status up to date, once.
func (w *Writer) Write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	w.writing.Lock()
	defer w.writing.Unlock()
	l := &v1alpha1.SliceLedger{}
	err := w.Live.Get(ctx, client.ObjectKey{Name: w.Node}, l)
	if apierrors.IsNotFound(err) {
		l, err = w.create(ctx)
	}
	if err != nil {
		return err
	}
	before := l.Status.DeepCopy()
	w.Fill(&l.Status)
	if !slices.Equal(healthyNames(before.Devices), healthyNames(l.Status.Devices)) || !slices.Equal(before.Misaligned, l.Status.Misaligned) {
		w.Cache.doubt()
	}
	if !equality.Semantic.DeepEqual(before, &l.Status) {
		// The resource version that was read goes along, so that a write by anybody
		// in between is a conflict and not lost.
		if err := w.Live.Status().Update(ctx, l); err != nil {
			refused.Count(refused.LedgerStatus, err)
			return err
		}
	}
	w.Cache.settle(l.ResourceVersion)
	return nil
}

// WriteLast brings the status up to date, and tries for as long as one exchange may take.
// Nothing else tries again to write what an agent says as it ends.
func (w *Writer) WriteLast(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	for {
		err := w.Write(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		wait(ctx, minRetry)
	}
}

// create makes an empty ledger that lives as long as the node object.
func (w *Writer) create(ctx context.Context) (*v1alpha1.SliceLedger, error) {
	node := &corev1.Node{}
	if err := w.Live.Get(ctx, client.ObjectKey{Name: w.Node}, node); err != nil {
		return nil, fmt.Errorf("reading node %s: %w; set --node-name to the name of this node", w.Node, err)
	}
	l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{
		Name: w.Node,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
		}},
	}}
	if err := w.Live.Create(ctx, l); err != nil {
		refused.Count(refused.LedgerStatus, err)
		return nil, fmt.Errorf("creating SliceLedger %s: %w", w.Node, err)
	}
	w.Log.Info("Created the node's ledger")
	return l, nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
