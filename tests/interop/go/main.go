// The Go SDK against the demo agent, over each binding at 1.0 and 0.3: go run . http://HOST:PORT
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
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	grpc03 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
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

func is(err, expected error) {
	if !errors.Is(err, expected) {
		panic(fmt.Errorf("%v is not %v", err, expected))
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
	{"parts of the user", func(c client) {
		sent := user("hello")
		sent.Parts = append(sent.Parts, a2a.NewRawPart([]byte("\x00\xff raw")), a2a.NewRawPart([]byte("test")))
		task := must(c.GetTask(c, &a2a.GetTaskRequest{ID: c.task(sent).ID}))
		parts := task.History[0].Parts
		raw := []string{string(parts[1].Raw()), string(parts[2].Raw())}
		equal([]any{parts[0].Text(), raw}, []any{"hello", []string{"\x00\xff raw", "test"}})
	}},
	{"subscribe after a cut", func(c client) {
		var id a2a.TaskID
		for event, err := range c.SendStreamingMessage(c, request(user("/stream 20 50"))) {
			id = must(event, err).(*a2a.Task).ID
			break
		}
		events := all(c.SubscribeToTask(c, &a2a.SubscribeToTaskRequest{ID: id}))
		equal(events[0].(*a2a.Task).ID, id)
		equal(last(events), a2a.TaskStateCompleted)
	}},
	{"push configurations", func(c client) {
		id := c.task(user("/ask What?")).ID
		auth := &a2a.PushAuthInfo{Scheme: "Bearer", Credentials: "secret"}
		config := &a2a.PushConfig{TaskID: id, ID: "p", URL: "https://hook.invalid/", Token: "t", Auth: auth}
		// Secrets are not returned.
		saved := &a2a.PushConfig{TaskID: id, ID: "p", URL: config.URL, Auth: &a2a.PushAuthInfo{Scheme: "Bearer"}}
		equal(must(c.CreateTaskPushConfig(c, config)), saved)
		get := &a2a.GetTaskPushConfigRequest{TaskID: id, ID: "p"}
		list := &a2a.ListTaskPushConfigRequest{TaskID: id}
		equal(must(c.GetTaskPushConfig(c, get)), saved)
		equal(must(c.ListTaskPushConfigs(c, list)), []*a2a.PushConfig{saved})
		must(0, c.DeleteTaskPushConfig(c, &a2a.DeleteTaskPushConfigRequest{TaskID: id, ID: "p"}))
		equal(len(must(c.ListTaskPushConfigs(c, list))), 0)
		_, err := c.GetTaskPushConfig(c, get)
		is(err, a2a.ErrTaskNotFound)
	}},
	{"unknown task", func(c client) {
		_, err := c.GetTask(c, &a2a.GetTaskRequest{ID: "nobody"})
		is(err, a2a.ErrTaskNotFound)
		_, err = c.CancelTask(c, &a2a.CancelTaskRequest{ID: "nobody"})
		is(err, a2a.ErrTaskNotFound)
	}},
	{"error before a stream", func(c client) {
		var errs []error
		for _, err := range c.SubscribeToTask(c, &a2a.SubscribeToTaskRequest{ID: "nobody"}) {
			errs = append(errs, err)
		}
		unknown := request(user("hello"))
		unknown.Message.TaskID = "nobody"
		for _, err := range c.SendStreamingMessage(c, unknown) {
			errs = append(errs, err)
		}
		equal(len(errs), 2)
		is(errs[0], a2a.ErrTaskNotFound)
		is(errs[1], a2a.ErrTaskNotFound)
		for _, err := range c.SendStreamingMessage(c, request(a2a.NewMessage(a2a.MessageRoleUser))) {
			errs = append(errs, err)
		}
		equal(len(errs), 3)
		is(errs[2], a2a.ErrInvalidParams)
	}},
	{"follow-up without waiting", func(c client) {
		asked := c.task(user("/ask What?"))
		answer := request(a2a.NewMessageForTask(a2a.MessageRoleUser, asked, a2a.NewTextPart("That.")))
		answer.Config.ReturnImmediately = true
		sent := must(c.SendMessage(c, answer)).(*a2a.Task)
		now := must(c.GetTask(c, &a2a.GetTaskRequest{ID: asked.ID}))
		for _, task := range []*a2a.Task{sent, now} {
			equal(task.Status.State == a2a.TaskStateInputRequired, false)
		}
	}},
	{"first update right after the reply", func(c client) {
		now := must(c.GetTask(c, &a2a.GetTaskRequest{ID: c.started("/stream 20 50").ID}))
		equal(now.Status.State, a2a.TaskStateWorking)
	}},
	{"not cancelable", func(c client) {
		_, err := c.CancelTask(c, &a2a.CancelTaskRequest{ID: c.task(user("hello")).ID})
		is(err, a2a.ErrTaskNotCancelable)
	}},
	{"bad parameters", func(c client) {
		_, err := c.SendMessage(c, request(a2a.NewMessage(a2a.MessageRoleUser)))
		is(err, a2a.ErrInvalidParams)
	}},
}

// try runs one test, and returns why it failed.
func try(run func(client), c client) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("%v\n%s", why, debug.Stack())
		}
	}()
	c.Context = ctx
	run(c)
	return nil
}

func main() {
	build, _ := debug.ReadBuildInfo()
	sdk := build.Deps[slices.IndexFunc(build.Deps, func(it *debug.Module) bool { return it.Path == module })]
	ctx := context.Background()
	card := must(agentcard.DefaultResolver.Resolve(ctx, os.Args[1]))
	insecure := grpc.WithTransportCredentials(insecure.NewCredentials())
	failures := 0
	for _, version := range []a2a.ProtocolVersion{a2a.Version, a2av0.Version} {
		// This version alone, and what the SDK has for it.
		only := *card
		only.SupportedInterfaces = nil
		for _, it := range card.SupportedInterfaces {
			if it.ProtocolVersion == version {
				only.SupportedInterfaces = append(only.SupportedInterfaces, it)
			}
		}
		for _, binding := range []a2a.TransportProtocol{
			a2a.TransportProtocolJSONRPC, a2a.TransportProtocolHTTPJSON, a2a.TransportProtocolGRPC,
		} {
			if version == a2av0.Version && binding == a2a.TransportProtocolHTTPJSON {
				name := fmt.Sprintf("a2a-go %s at %s %s", sdk.Version, version, binding)
				fmt.Println("skipped " + name + ": its paths and its JSON are not those of 0.3")
				continue
			}
			c := must(a2aclient.NewFromCard(ctx, &only,
				a2agrpc.WithGRPCTransport(insecure), grpc03.WithGRPCTransport(insecure),
				a2av0.WithJSONRPCTransport(a2av0.JSONRPCTransportConfig{}),
				a2aclient.WithConfig(a2aclient.Config{PreferredTransports: []a2a.TransportProtocol{binding}})))
			for _, test := range tests {
				if test.name == "list" && version == a2av0.Version {
					continue // It has none.
				}
				name := fmt.Sprintf("a2a-go %s at %s %s %s", sdk.Version, version, binding, test.name)
				if err := try(test.run, client{ctx, c}); err != nil {
					failures++
					fmt.Printf("FAILED %s\n    %s\n", name, strings.ReplaceAll(err.Error(), "\n", "\n    "))
				} else {
					fmt.Println("ok " + name)
				}
			}
		}
	}
	if failures > 0 {
		os.Exit(1)
	}
}
