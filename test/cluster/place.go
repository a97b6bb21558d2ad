// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/cluster/machine"
)

const (
	controlPlane = "control-plane"
	bridge       = "vernier0"
)

// Place is a network namespace with an address that every other place reaches:
// the control plane, a node, or what AddPlace made. A process that does nothing
// keeps it; it is gone with that process, so nothing of it can be left behind.
type Place struct {
	Name string `json:"name"`
	IP   string `json:"ip"`
	// Holder is the process that keeps the namespaces.
	Holder machine.Process `json:"holder"`
}

// NetNS is the path of the network namespace, for nsenter --net=PATH.
func (p *Place) NetNS() string { return fmt.Sprintf("/proc/%d/ns/net", p.Holder.PID) }

func (p *Place) mountNS() string { return fmt.Sprintf("/proc/%d/ns/mnt", p.Holder.PID) }

// Argv is the command that runs argv in the network namespace. The program
// replaces it: the process stays the one that was started.
func (p *Place) Argv(argv ...string) []string {
	return append([]string{"nsenter", "--net=" + p.NetNS(), "--"}, argv...)
}

// Dial connects from inside the network namespace to an IP address and port.
func (p *Place) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := onOwnThread(func() error {
		f, err := os.Open(p.NetNS())
		if err == nil {
			defer f.Close()
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			return fmt.Errorf("entering the network of %s: %w", p.Name, err)
		}
		// A socket belongs to the namespace in which it was made: the connection may be
		// used anywhere.
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// onOwnThread calls a function that enters another namespace, on a thread that ends with it.
func onOwnThread(call func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread never ends, and /proc/self shows its namespaces as the
			// process's: it is kept here while another thread runs the call.
			defer runtime.UnlockOSThread()
			done <- onOwnThread(call)
			return
		}
		done <- call() // never unlocked: the thread ends with the goroutine
	}()
	return <-done
}

// hold starts the process that keeps a new network namespace and a new mount
// namespace, after script has run in them.
func (c *Cluster) hold(name, script string) (machine.Process, error) {
	// Pods' packets pass through every node and the control plane.
	const forwarding = "echo 1 >/proc/sys/net/ipv4/ip_forward\n"
	cmd := exec.Command("/bin/sh", "-ec", forwarding+script+"\necho ready\nexec \"$0\" \"$@\"", c.tools.pause, prefix+name)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// Go makes every mount private first: none of ours reaches the machine.
		Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Setsid:       true, UseCgroupFD: true, CgroupFD: int(c.group.Fd()),
	}
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.StdoutPipe()
	if err != nil {
		return machine.Process{}, err
	}
	if err := cmd.Start(); err != nil {
		return machine.Process{}, fmt.Errorf("new namespaces for %s: %w", name, err)
	}
	id, err := machine.Lookup(cmd.Process.Pid)
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" || err != nil {
		err = errors.Join(err, cmd.Wait()) // then all that it had to say is there
		return machine.Process{}, fmt.Errorf("new namespaces for %s: %w: %s", name, err, strings.TrimSpace(problems.String()))
	}
	go cmd.Wait() // reaps it
	return id, nil
}

// addPlace makes a place and links it to the bridge.
func (c *Cluster) addPlace(name, ip, script string) (*Place, error) {
	holder, err := c.hold(name, script)
	if err != nil {
		return nil, err
	}
	p := &Place{Name: name, IP: ip, Holder: holder}
	c.mu.Lock()
	index := len(c.state.Places)
	c.state.Places = append(c.state.Places, p)
	err = c.state.save()
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if name == controlPlane {
		return p, p.inNetwork(func(h *netlink.Handle) error {
			link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}
			if err := h.LinkAdd(link); err != nil {
				return err
			}
			return errors.Join(bringUp(h, "lo", serviceIP+"/32"), bringUp(h, bridge, controlPlaneIP+"/24"))
		})
	}
	err = c.ControlPlane.inNetwork(func(h *netlink.Handle) error {
		to, err := h.LinkByName(bridge)
		if err != nil {
			return err
		}
		link := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("vernier%d", index), MasterIndex: to.Attrs().Index},
			PeerName:  "eth0", PeerNamespace: netlink.NsPid(holder.PID),
		}
		if err := h.LinkAdd(link); err != nil {
			return err
		}
		return h.LinkSetUp(link)
	})
	if err != nil {
		return nil, err
	}
	return p, p.inNetwork(func(h *netlink.Handle) error {
		if err := errors.Join(bringUp(h, "lo", ""), bringUp(h, "eth0", ip+"/24")); err != nil {
			return err
		}
		return h.RouteAdd(&netlink.Route{Gw: net.ParseIP(controlPlaneIP)})
	})
}

// AddPlace makes a place besides the nodes, for processes that would have a pod's
// network in production, such as the replicas of a webhook.
func (c *Cluster) AddPlace(name string) (*Place, error) {
	c.placing.Lock()
	defer c.placing.Unlock()
	if c.Place(name) != nil {
		return nil, fmt.Errorf("place %s is there already", name)
	}
	c.mu.Lock()
	index := len(c.state.Places)
	c.mu.Unlock()
	p, err := c.addPlace(name, placeIP(index), "")
	if err != nil {
		return nil, fmt.Errorf("place %s: %w", name, err)
	}
	return p, nil
}

// inNetwork changes the place's interfaces and routes.
func (p *Place) inNetwork(change func(*netlink.Handle) error) error {
	ns, err := netns.GetFromPath(p.NetNS())
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("network of %s: %w", p.Name, err)
	}
	defer h.Close()
	if err := change(h); err != nil {
		return fmt.Errorf("network of %s: %w", p.Name, err)
	}
	return nil
}

// bringUp gives an interface an address, unless that is empty, and brings it up.
func bringUp(h *netlink.Handle, name, address string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	if address != "" {
		at, err := netlink.ParseAddr(address)
		if err == nil {
			err = h.AddrAdd(link, at)
		}
		if err != nil {
			return err
		}
	}
	return h.LinkSetUp(link)
}
