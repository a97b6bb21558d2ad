// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// clientConfigs say where the API server finds the webhooks of a configuration.
func clientConfigs(config client.Object) []*admissionv1.WebhookClientConfig {
	var found []*admissionv1.WebhookClientConfig
	switch c := config.(type) {
	case *admissionv1.MutatingWebhookConfiguration:
		for i := range c.Webhooks {
			found = append(found, &c.Webhooks[i].ClientConfig)
		}
	case *admissionv1.ValidatingWebhookConfiguration:
		for i := range c.Webhooks {
			found = append(found, &c.Webhooks[i].ClientConfig)
		}
	}
	return found
}

// hosts are the names under which the API server calls the webhook: the
// certificate is for whatever address the configuration names, so that a webhook
// that runs outside the cluster (a url, not a service) needs no setting of ours.
func hosts(config client.Object) []string {
	var found []string
	for _, cc := range clientConfigs(config) {
		if cc.Service != nil {
			found = append(found, cc.Service.Name+"."+cc.Service.Namespace+".svc")
		}
		if cc.URL != nil {
			if u, err := url.Parse(*cc.URL); err == nil {
				found = append(found, u.Hostname())
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// trust writes the bundle into every webhook of the configuration that has
// another. A patch of that field only: an update would drop what this version's
// types do not know.
func trust(ctx context.Context, c client.Client, config client.Object, bundle []byte) error {
	ops := []jsonpatch.Operation{jsonpatch.NewOperation("test", "/metadata/resourceVersion", config.GetResourceVersion())}
	for i, cc := range clientConfigs(config) {
		if !bytes.Equal(cc.CABundle, bundle) {
			ops = append(ops, jsonpatch.NewOperation("add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), bundle))
		}
	}
	if len(ops) == 1 {
		return nil
	}
	patch, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	return c.Patch(ctx, config, client.RawPatch(types.JSONPatchType, patch))
}
