// SPDX-License-Identifier: Apache-2.0

// Command kuberay runs KubeRay's controllers. Its own main has webhooks, which are off by default and
// do not compile with the controller-runtime that the other programs share.
package main

import (
	"log"

	configapi "github.com/ray-project/kuberay/ray-operator/apis/config/v1alpha1"
	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/batchscheduler"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctrl.SetLogger(zap.New())
	ctx := ctrl.SetupSignalHandler()
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		return err
	}
	if err := rayv1.AddToScheme(mgr.GetScheme()); err != nil {
		return err
	}
	config := configapi.Configuration{}
	batch, err := batchscheduler.NewSchedulerManager(ctx, config, mgr.GetConfig(), mgr.GetClient())
	if err != nil {
		return err
	}
	if err := ray.NewReconciler(ctx, mgr, ray.RayClusterReconcilerOptions{BatchSchedulerManager: batch}).SetupWithManager(mgr, 1); err != nil {
		return err
	}
	if err := ray.NewRayJobReconciler(ctx, mgr, ray.RayJobReconcilerOptions{BatchSchedulerManager: batch}, config).SetupWithManager(mgr, 1); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
