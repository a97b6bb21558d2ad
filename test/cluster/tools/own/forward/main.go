// SPDX-License-Identifier: Apache-2.0

// The forward program accepts connections on the listener that it inherits as
// file descriptor 3 and connects each to the TCP address in its argument. The
// listener was opened outside the network namespace in which the program runs:
// that is how a client outside reaches the API server inside, without a route or
// an interface of ours outside.
package main

import (
	"io"
	"log"
	"net"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: forward ADDRESS:PORT 3<listener")
	}
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		log.Fatalf("file descriptor 3 is not a listener: %v", err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go serve(c.(*net.TCPConn), os.Args[1])
	}
}

func serve(outside *net.TCPConn, address string) {
	defer outside.Close()
	c, err := net.Dial("tcp", address)
	if err != nil {
		log.Print(err)
		return
	}
	inside := c.(*net.TCPConn)
	defer inside.Close()
	done := make(chan struct{}, 2)
	// Either side may end its half first and still read the other's.
	half := func(to, from *net.TCPConn) {
		io.Copy(to, from)
		to.CloseWrite()
		done <- struct{}{}
	}
	go half(inside, outside)
	go half(outside, inside)
	<-done
	<-done
}
