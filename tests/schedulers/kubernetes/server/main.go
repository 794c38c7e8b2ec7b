// One binary with the parts of a Kubernetes control plane that the tests of the adapter run:
// etcd, kube-apiserver, kube-controller-manager and kube-scheduler, each the project's own code.
// The first argument names the part; the rest are its own flags.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kubeserver etcd|apiserver|controllers|scheduler [flags]")
		os.Exit(2)
	}
	part := os.Args[1]
	os.Args = append([]string{os.Args[0]}, os.Args[2:]...)
	var command *cobra.Command
	switch part {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "apiserver":
		command = apiserver.NewAPIServerCommand()
	case "controllers":
		command = controllers.NewControllerManagerCommand()
	case "scheduler":
		command = scheduler.NewSchedulerCommand()
	default:
		fmt.Fprintf(os.Stderr, "kubeserver: no part is called %q\n", part)
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}
