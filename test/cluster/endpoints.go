// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applydiscoveryv1 "k8s.io/client-go/applyconfigurations/discovery/v1"
)

// PublishEndpoints puts processes that run at the given places behind a Service
// that exists and selects no pods. Port is the Service port's name, or empty as
// there, and number is where the processes listen. Calling it again replaces the
// places; with none the Service has no endpoint.
func (c *Cluster) PublishEndpoints(ctx context.Context, namespace, service, port string, number int32, places ...*Place) error {
	slice := applydiscoveryv1.EndpointSlice(service, namespace).
		WithLabels(map[string]string{
			discoveryv1.LabelServiceName: service,
			// Keeps Kubernetes' own controllers away from it.
			discoveryv1.LabelManagedBy: "vernier-cluster",
		}).
		WithAddressType(discoveryv1.AddressTypeIPv4).
		WithPorts(applydiscoveryv1.EndpointPort().WithName(port).WithPort(number))
	for _, p := range places {
		slice = slice.WithEndpoints(applydiscoveryv1.Endpoint().WithAddresses(p.IP).
			WithConditions(applydiscoveryv1.EndpointConditions().WithReady(true)))
	}
	_, err := c.Client.DiscoveryV1().EndpointSlices(namespace).Apply(ctx, slice, metav1.ApplyOptions{FieldManager: "vernier-cluster", Force: true})
	if err != nil {
		return fmt.Errorf("endpoints of service %s/%s: %w", namespace, service, err)
	}
	return nil
}
