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

// hosts are the names under which the API server calls the webhook: the
// certificate is for whatever address the configuration names, so that a webhook
// that runs outside the cluster (a url, not a service) needs no setting of ours.
func hosts(config *admissionv1.MutatingWebhookConfiguration) []string {
	var found []string
	for i := range config.Webhooks {
		cc := &config.Webhooks[i].ClientConfig
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
func trust(ctx context.Context, c client.Client, config *admissionv1.MutatingWebhookConfiguration, bundle []byte) error {
	ops := []jsonpatch.Operation{jsonpatch.NewOperation("test", "/metadata/resourceVersion", config.ResourceVersion)}
	for i := range config.Webhooks {
		if !bytes.Equal(config.Webhooks[i].ClientConfig.CABundle, bundle) {
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
