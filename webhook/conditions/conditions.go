// SPDX-License-Identifier: Apache-2.0

// Package conditions owns noticing that a dialect is half switched on. The flags of the
// webhook and the match conditions of its configuration, by which the API server sends it
// pods, are two settings. Only the chart changes both.
//
// It reads the webhook's own configuration, and writes nothing.
package conditions

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"vernier.dev/vernier/webhook/certs"
	"vernier.dev/vernier/webhook/dialect"
)

// poll is how often the configuration is read: one small read.
const poll = 30 * time.Second

// Values of the metric's label.
const (
	lacksCondition = "match-condition"
	lacksFlag      = "flag"
)

var halfEnabled = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "vernier_webhook_dialect_half_enabled",
	Help: "Resources and annotations of dialects that lack one of the two settings. Without a match-condition of the webhook's configuration, pods that ask by them are created as they are. Without the flag, they are sent and not translated.",
}, []string{"lacks"})

func init() {
	for _, lacks := range []string{lacksCondition, lacksFlag} {
		halfEnabled.WithLabelValues(lacks)
	}
	metrics.Registry.MustRegister(halfEnabled)
}

// Collector has the package's metric, for the reference.
func Collector() prometheus.Collector { return halfEnabled }

// Watcher compares the two now and then.
type Watcher struct {
	// Client must not read from a cache.
	Client   client.Client
	Dialects dialect.Set

	// said is what the log said last.
	said string
}

// NeedLeaderElection tells the manager that every replica compares its own flags.
func (w *Watcher) NeedLeaderElection() bool { return false }

// Start compares until the context ends.
func (w *Watcher) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("dialects"))
	wait.UntilWithContext(ctx, w.look, poll)
	return nil
}

func (w *Watcher) look(ctx context.Context) {
	config := &admissionv1.MutatingWebhookConfiguration{}
	if err := w.Client.Get(ctx, client.ObjectKey{Name: certs.ConfigurationName}, config); err != nil {
		if said := "read"; w.said != said && ctx.Err() == nil {
			w.said = said
			log.FromContext(ctx).Error(err, "Cannot compare the dialects with the match conditions", "configuration", certs.ConfigurationName)
		}
		return
	}
	var conditions []string
	for i := range config.Webhooks {
		for _, c := range config.Webhooks[i].MatchConditions {
			conditions = append(conditions, c.Expression)
		}
	}
	w.compare(ctx, conditions)
}

// compare says what differs, when that has changed. Readiness is not touched: pods that ask
// in Vernier's own words are admitted all the same.
func (w *Watcher) compare(ctx context.Context, conditions []string) {
	logger := log.FromContext(ctx)
	unsent, unread := w.Dialects.HalfEnabled(conditions)
	halfEnabled.WithLabelValues(lacksCondition).Set(float64(len(unsent)))
	halfEnabled.WithLabelValues(lacksFlag).Set(float64(len(unread)))
	said := fmt.Sprint(unsent, unread)
	if said == w.said {
		return
	}
	w.said = said
	if len(unsent) > 0 {
		logger.Error(nil, "Flag --dialects is set, and the match conditions of the configuration do not send pods that ask by these names. Add the names to the match conditions",
			"configuration", certs.ConfigurationName, "names", unsent)
	}
	if len(unread) > 0 {
		logger.Error(nil, "The match conditions of the configuration send pods that ask by these names, and no dialect reads them. Set --dialects, or remove the names from the match conditions",
			"configuration", certs.ConfigurationName, "names", unread)
	}
}
