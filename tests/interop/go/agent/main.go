// Agent on the Go SDK, over each binding at 1.0 and 0.3: go run ./agent. Ends when its input is closed.
//
// The commands of a message are those in tests/interop/python/agent_texts.py.
package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	grpc03 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"google.golang.org/grpc"
)

type executor struct{}

func (executor) Execute(ctx context.Context, task *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	text := task.Message.Parts[0].Text()
	command, rest, _ := strings.Cut(text, " ")
	if task.StoredTask != nil {
		command, rest = "", text
	}
	return func(yield func(a2a.Event, error) bool) {
		status := func(state a2a.TaskState, text string) bool {
			var message *a2a.Message
			if text != "" {
				message = a2a.NewMessageForTask(a2a.MessageRoleAgent, task, a2a.NewTextPart(text))
			}
			return yield(a2a.NewStatusUpdateEvent(task, state, message), nil)
		}
		if command == "/message" {
			yield(a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart(rest)), nil)
			return
		}
		if task.StoredTask == nil && !yield(a2a.NewSubmittedTask(task, task.Message), nil) {
			return
		}
		switch command {
		case "/ask":
			status(a2a.TaskStateInputRequired, rest)
			return
		case "/fail":
			status(a2a.TaskStateFailed, rest)
			return
		}
		if !status(a2a.TaskStateWorking, "") {
			return
		}
		if command == "/slow" {
			select {
			case <-ctx.Done():
				return
			case <-time.After(20 * time.Second):
			}
		}
		count := 1
		if command == "/stream" {
			count, _ = strconv.Atoi(rest)
		}
		artifact := a2a.NewArtifactID()
		for n := 1; n <= count; n++ {
			if command == "/stream" {
				text = fmt.Sprintf("chunk %d of %d\n", n, count)
			}
			chunk := a2a.NewArtifactUpdateEvent(task, artifact, a2a.NewTextPart(text))
			chunk.Append, chunk.LastChunk = n > 1, n == count
			if !yield(chunk, nil) {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		status(a2a.TaskStateCompleted, "")
	}
}

func (executor) Cancel(_ context.Context, task *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		yield(a2a.NewStatusUpdateEvent(task, a2a.TaskStateCanceled, nil), nil)
	}
}

func listen() net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	return listener
}

func main() {
	httpListener, grpcListener := listen(), listen()
	url := "http://" + httpListener.Addr().String()
	card := &a2a.AgentCard{
		Name: "Go agent", Description: "Answers commands.", Version: "1",
		DefaultInputModes: []string{"text/plain"}, DefaultOutputModes: []string{"text/plain"},
		Capabilities: a2a.AgentCapabilities{Streaming: true},
		Skills:       []a2a.AgentSkill{{ID: "echo", Name: "Echo", Description: "Returns the text.", Tags: []string{"echo"}}},
	}
	add := func(version a2a.ProtocolVersion, url string, binding a2a.TransportProtocol) {
		added := a2a.NewAgentInterface(url, binding)
		added.ProtocolVersion = version
		card.SupportedInterfaces = append(card.SupportedInterfaces, added)
	}
	grpcURL := grpcListener.Addr().String()
	add(a2a.Version, url+"/rpc", a2a.TransportProtocolJSONRPC)
	add(a2a.Version, url, a2a.TransportProtocolHTTPJSON)
	add(a2a.Version, grpcURL, a2a.TransportProtocolGRPC)
	add(a2av0.Version, url+"/rpc03", a2a.TransportProtocolJSONRPC)
	add(a2av0.Version, url, a2a.TransportProtocolHTTPJSON)
	add(a2av0.Version, grpcURL, a2a.TransportProtocolGRPC)

	handler := a2asrv.NewHandler(executor{})
	mux := http.NewServeMux()
	mux.Handle("/", a2asrv.NewRESTHandler(handler))
	mux.Handle("/v1/", http.StripPrefix("/v1", a2av0.NewRESTHandler(handler)))
	mux.Handle("/rpc", a2asrv.NewJSONRPCHandler(handler))
	mux.Handle("/rpc03", a2av0.NewJSONRPCHandler(handler))
	mux.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewAgentCardHandler(a2av0.NewStaticAgentCardProducer(card)))
	server := grpc.NewServer()
	a2agrpc.NewHandler(handler).RegisterWith(server)
	grpc03.NewHandler(handler).RegisterWith(server)
	go func() { log.Fatal(http.Serve(httpListener, mux)) }()
	go func() { log.Fatal(server.Serve(grpcListener)) }()
	fmt.Println("listening on " + url)
	// Ends with the program that started it.
	_, _ = io.Copy(io.Discard, os.Stdin)
}
