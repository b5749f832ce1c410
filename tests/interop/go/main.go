// The Go SDK against the demo agent, over each binding that the agent card names: go run . http://HOST:PORT
package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const module = "github.com/a2aproject/a2a-go/v2"

type client struct {
	context.Context
	*a2aclient.Client
}

func request(message *a2a.Message) *a2a.SendMessageRequest {
	return &a2a.SendMessageRequest{Message: message, Config: &a2a.SendMessageConfig{}}
}

func user(text string) *a2a.Message {
	return a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))
}

func text(parts a2a.ContentParts) string {
	var texts []string
	for _, part := range parts {
		texts = append(texts, part.Text())
	}
	return strings.Join(texts, "")
}

func equal(got, expected any) {
	if !reflect.DeepEqual(got, expected) {
		panic(fmt.Errorf("%#v is not %#v", got, expected))
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func all(stream iter.Seq2[a2a.Event, error]) []a2a.Event {
	var events []a2a.Event
	for event, err := range stream {
		events = append(events, must(event, err))
	}
	return events
}

func (c client) task(message *a2a.Message) *a2a.Task {
	return must(c.SendMessage(c, request(message))).(*a2a.Task)
}

func (c client) started(text string) *a2a.Task {
	immediately := request(user(text))
	immediately.Config.ReturnImmediately = true
	return must(c.SendMessage(c, immediately)).(*a2a.Task)
}

func last(events []a2a.Event) a2a.TaskState {
	return events[len(events)-1].(*a2a.TaskStatusUpdateEvent).Status.State
}

var tests = []struct {
	name string
	run  func(client)
}{
	{"send", func(c client) {
		task := c.task(user("hello"))
		equal(task.Status.State, a2a.TaskStateCompleted)
		equal(text(task.Artifacts[0].Parts), "hello")
	}},
	{"stream", func(c client) {
		events := all(c.SendStreamingMessage(c, request(user("/stream 5 10"))))
		var chunks []string
		var appends []bool
		for _, event := range events {
			if chunk, ok := event.(*a2a.TaskArtifactUpdateEvent); ok {
				chunks = append(chunks, text(chunk.Artifact.Parts))
				appends = append(appends, chunk.Append)
			}
		}
		equal(strings.Join(chunks, ""), "chunk 1 of 5\nchunk 2 of 5\nchunk 3 of 5\nchunk 4 of 5\nchunk 5 of 5\n")
		equal(appends, []bool{false, true, true, true, true})
		equal(reflect.TypeOf(events[0]), reflect.TypeFor[*a2a.Task]())
		equal(last(events), a2a.TaskStateCompleted)
	}},
	{"get", func(c client) {
		task := must(c.GetTask(c, &a2a.GetTaskRequest{ID: c.task(user("hello")).ID}))
		equal(task.Status.State, a2a.TaskStateCompleted)
		equal(text(task.History[0].Parts), "hello")
	}},
	{"list", func(c client) {
		task := c.task(user("hello"))
		// The size is named, because over gRPC this SDK sends a 0 where it is not, which the protocol does not allow.
		list := a2a.ListTasksRequest{ContextID: task.ContextID, Status: a2a.TaskStateCompleted, PageSize: 10}
		page := must(c.ListTasks(c, &list))
		equal([]any{page.TotalSize, page.Tasks[0].ID}, []any{1, task.ID})
	}},
	{"cancel", func(c client) {
		task := must(c.CancelTask(c, &a2a.CancelTaskRequest{ID: c.started("/slow 30").ID}))
		equal(task.Status.State, a2a.TaskStateCanceled)
	}},
	{"input required", func(c client) {
		task := c.task(user("/ask What?"))
		equal(task.Status.State, a2a.TaskStateInputRequired)
		done := c.task(a2a.NewMessageForTask(a2a.MessageRoleUser, task, a2a.NewTextPart("That.")))
		equal([]any{done.ID, done.Status.State}, []any{task.ID, a2a.TaskStateCompleted})
		equal(text(done.Artifacts[0].Parts), "That.")
	}},
	{"subscribe", func(c client) {
		task := c.started("/stream 20 50")
		events := all(c.SubscribeToTask(c, &a2a.SubscribeToTaskRequest{ID: task.ID}))
		equal(events[0].(*a2a.Task).ID, task.ID)
		equal(last(events), a2a.TaskStateCompleted)
	}},
	{"message only", func(c client) {
		message := must(c.SendMessage(c, request(user("/message hi")))).(*a2a.Message)
		equal([]any{message.Role, text(message.Parts)}, []any{a2a.MessageRoleAgent, "hi"})
	}},
	{"parts", func(c client) {
		parts := c.task(user("/parts")).Artifacts[0].Parts
		equal([]any{parts[0].Text(), string(parts[1].Raw())}, []any{"A text part.", "A raw part.\n"})
		equal(parts[2].URL(), a2a.URL("https://example.com/map.png"))
		equal(parts[3].Data().(map[string]any)["numbers"], []any{1.0, 2.5})
	}},
	{"unknown task", func(c client) {
		_, err := c.GetTask(c, &a2a.GetTaskRequest{ID: "nobody"})
		equal(errors.Is(err, a2a.ErrTaskNotFound), true)
		for _, err := range c.SubscribeToTask(c, &a2a.SubscribeToTaskRequest{ID: "nobody"}) {
			equal(errors.Is(err, a2a.ErrTaskNotFound), true)
		}
	}},
}

// try runs one test, and returns why it failed.
func try(run func(client), c *a2aclient.Client) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("%v\n%s", why, debug.Stack())
		}
	}()
	run(client{ctx, c})
	return nil
}

func main() {
	build, _ := debug.ReadBuildInfo()
	sdk := build.Deps[slices.IndexFunc(build.Deps, func(it *debug.Module) bool { return it.Path == module })]
	ctx := context.Background()
	card := must(agentcard.DefaultResolver.Resolve(ctx, os.Args[1]))
	failures := 0
	for _, binding := range []a2a.TransportProtocol{
		a2a.TransportProtocolJSONRPC, a2a.TransportProtocolHTTPJSON, a2a.TransportProtocolGRPC,
	} {
		c := must(a2aclient.NewFromCard(ctx, card,
			a2agrpc.WithGRPCTransport(grpc.WithTransportCredentials(insecure.NewCredentials())),
			a2aclient.WithConfig(a2aclient.Config{PreferredTransports: []a2a.TransportProtocol{binding}})))
		for _, test := range tests {
			name := fmt.Sprintf("a2a-go %s %s %s", sdk.Version, binding, test.name)
			if err := try(test.run, c); err != nil {
				failures++
				fmt.Printf("FAILED %s\n    %s\n", name, strings.ReplaceAll(err.Error(), "\n", "\n    "))
			} else {
				fmt.Println("ok " + name)
			}
		}
	}
	if failures > 0 {
		os.Exit(1)
	}
}
