// gRPC clients of protocol 1.0 and 0.3 on code that protoc-gen-go generates from proto/: go run ./client URL
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	v03 "sdk/generated/a2a/v1"
	v1 "sdk/generated/lf/a2a/v1"
	"sdk/results"
)

const timeout = 20 * time.Second

var (
	// The server may join chunks, so an update may have several parts.
	chunks = []string{"chunk 1 of 3\n", "chunk 2 of 3\n", "chunk 3 of 3\n"}
	raw    = []byte{0, 1, 254, 255}
)

func main() {
	server := os.Args[1]
	results.Run("gRPC 1.0", newClientV1(server).tests())
	results.Run("gRPC 0.3", newClientV03(server).tests())
	results.Exit()
}

// agentCard reads the agent card for a protocol version.
func agentCard(server, version string, card proto.Message, options protojson.UnmarshalOptions) {
	request := results.Must(http.NewRequest(http.MethodGet, server+"/.well-known/agent-card.json", nil))
	request.Header.Set("A2A-Version", version)
	response := results.Must(http.DefaultClient.Do(request))
	defer response.Body.Close()
	results.Equal(response.StatusCode, http.StatusOK)
	results.Check(options.Unmarshal(results.Must(io.ReadAll(response.Body)), card))
}

func connect(address string) *grpc.ClientConn {
	return results.Must(grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())))
}

// call returns the response of a unary call, or its error.
func call[Request, Response any](
	method func(context.Context, Request, ...grpc.CallOption) (Response, error), request Request,
) (Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return method(ctx, request)
}

// events calls a streaming method and returns all events. It calls received with each of them, unless that is nil.
func events[Request, Event any](
	method func(context.Context, Request, ...grpc.CallOption) (grpc.ServerStreamingClient[Event], error),
	request Request, received func(*Event),
) []*Event {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	stream := results.Must(method(ctx, request))
	var all []*Event
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		results.Check(err)
		all = append(all, event)
		if received != nil {
			received(event)
		}
	}
}

// rejection returns the status code of a rejected call, and the details that this program knows.
func rejection(err error) (codes.Code, *errdetails.ErrorInfo, *errdetails.BadRequest) {
	if err == nil {
		panic("not rejected")
	}
	var info *errdetails.ErrorInfo
	var badRequest *errdetails.BadRequest
	for _, detail := range status.Convert(err).Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			info = detail
		case *errdetails.BadRequest:
			badRequest = detail
		case error:
			panic(detail)
		}
	}
	return status.Code(err), info, badRequest
}

func checkReason(err error, code codes.Code, reason string) {
	actual, info, _ := rejection(err)
	results.Equal(actual, code)
	results.Equal([]string{info.GetReason(), info.GetDomain()}, []string{reason, "a2a-protocol.org"})
}

func data() map[string]any {
	return map[string]any{"city": "Lisbon", "numbers": []any{1.0, 2.5}, "nothing": nil}
}

func dataOfDemo() map[string]any {
	return map[string]any{"a": "data part", "numbers": []any{1.0, 2.5}, "nothing": nil}
}

func equalMessages(actual, expected proto.Message) {
	if !proto.Equal(actual, expected) {
		panic(fmt.Errorf("%v is not %v", actual, expected))
	}
}

func equalJSON(actual, expected any) {
	results.Equal(string(results.Must(json.Marshal(actual))), string(results.Must(json.Marshal(expected))))
}

// clientV1 is a client of protocol 1.0.
type clientV1 struct {
	v1.A2AServiceClient
	agent *v1.AgentCard
}

func newClientV1(server string) *clientV1 {
	card := &v1.AgentCard{}
	agentCard(server, "1.0", card, protojson.UnmarshalOptions{})
	for _, i := range card.GetSupportedInterfaces() {
		if i.GetProtocolBinding() == "GRPC" && i.GetProtocolVersion() == "1.0" {
			return &clientV1{v1.NewA2AServiceClient(connect(i.GetUrl())), card}
		}
	}
	panic("the agent card has no gRPC interface")
}

func (c *clientV1) tests() []results.Test {
	return []results.Test{
		{Name: "card", Run: c.card},
		{Name: "extended_card_is_rejected", Run: c.extendedCardIsRejected},
		{Name: "send", Run: c.send},
		{Name: "send_with_message_as_reply", Run: c.sendWithMessageAsReply},
		{Name: "stream", Run: c.stream},
		{Name: "get", Run: c.get},
		{Name: "list", Run: c.list},
		{Name: "cancel", Run: c.cancel},
		{Name: "subscribe", Run: c.subscribe},
		{Name: "error", Run: c.error},
		{Name: "error_with_field", Run: c.errorWithField},
		{Name: "file_part", Run: c.filePart},
		{Name: "data_part", Run: c.dataPart},
	}
}

func (c *clientV1) text(text string) *v1.Part {
	return &v1.Part{Content: &v1.Part_Text{Text: text}}
}

func (c *clientV1) request(parts ...*v1.Part) *v1.SendMessageRequest {
	message := &v1.Message{MessageId: "m", Role: v1.Role_ROLE_USER, Parts: parts}
	return &v1.SendMessageRequest{Message: message, Configuration: &v1.SendMessageConfiguration{}}
}

func (c *clientV1) task(parts ...*v1.Part) *v1.Task {
	return results.Must(call(c.SendMessage, c.request(parts...))).GetTask()
}

func (c *clientV1) start(command string) *v1.Task {
	request := c.request(c.text(command))
	request.Configuration.ReturnImmediately = true
	return results.Must(call(c.SendMessage, request)).GetTask()
}

func (c *clientV1) card() {
	results.Equal(c.agent.GetName(), "Demo")
	results.Equal(c.agent.GetCapabilities().GetStreaming(), true)
	var skills []string
	for _, skill := range c.agent.GetSkills() {
		skills = append(skills, skill.GetId())
	}
	results.Equal(skills, []string{"echo", "provoke"})
}

func (c *clientV1) extendedCardIsRejected() {
	_, err := call(c.GetExtendedAgentCard, &v1.GetExtendedAgentCardRequest{})
	checkReason(err, codes.FailedPrecondition, "UNSUPPORTED_OPERATION")
}

func (c *clientV1) send() {
	task := c.task(c.text("hello"))
	results.Equal(task.GetStatus().GetState(), v1.TaskState_TASK_STATE_COMPLETED)
	results.Equal(task.GetArtifacts()[0].GetParts()[0].GetText(), "hello")
}

func (c *clientV1) sendWithMessageAsReply() {
	message := results.Must(call(c.SendMessage, c.request(c.text("/message hi")))).GetMessage()
	results.Equal(message.GetRole(), v1.Role_ROLE_AGENT)
	results.Equal(message.GetParts()[0].GetText(), "hi")
}

func (c *clientV1) stream() {
	all := events(c.SendStreamingMessage, c.request(c.text("/stream 3 1")), nil)
	results.Equal(all[0].GetTask() != nil, true)
	var texts []string
	last := false
	for _, event := range all {
		if update := event.GetArtifactUpdate(); update != nil {
			results.Equal(last, false)
			last = update.GetLastChunk()
			for _, part := range update.GetArtifact().GetParts() {
				texts = append(texts, part.GetText())
			}
		}
	}
	results.Equal(last, true)
	results.Equal(texts, chunks)
	results.Equal(all[len(all)-1].GetStatusUpdate().GetStatus().GetState(), v1.TaskState_TASK_STATE_COMPLETED)
}

func (c *clientV1) get() {
	sent := c.task(c.text("hello"))
	task := results.Must(call(c.GetTask, &v1.GetTaskRequest{Id: sent.GetId(), HistoryLength: proto.Int32(1)}))
	results.Equal([]string{task.GetId(), task.GetContextId()}, []string{sent.GetId(), sent.GetContextId()})
	equalMessages(task.GetStatus(), sent.GetStatus())
	results.Equal(task.GetStatus().GetTimestamp().IsValid(), true)
	results.Equal(len(task.GetHistory()), 1)
	results.Equal(task.GetHistory()[0].GetParts()[0].GetText(), "hello")
	task = results.Must(call(c.GetTask, &v1.GetTaskRequest{Id: sent.GetId(), HistoryLength: proto.Int32(0)}))
	results.Equal(len(task.GetHistory()), 0)
}

func (c *clientV1) list() {
	first := c.task(c.text("first"))
	request := c.request(c.text("second"))
	request.Message.ContextId = first.GetContextId()
	second := results.Must(call(c.SendMessage, request)).GetTask()
	page := &v1.ListTasksRequest{
		ContextId: first.GetContextId(), PageSize: proto.Int32(1), Status: v1.TaskState_TASK_STATE_COMPLETED,
	}
	var ids []string
	for range 2 {
		response := results.Must(call(c.ListTasks, page))
		results.Equal([]int32{response.GetPageSize(), response.GetTotalSize()}, []int32{1, 2})
		for _, task := range response.GetTasks() {
			ids = append(ids, task.GetId())
		}
		page.PageToken = response.GetNextPageToken()
	}
	results.Equal(page.PageToken, "")
	results.Equal(ids, []string{second.GetId(), first.GetId()})
}

func (c *clientV1) cancel() {
	task := c.start("/slow 60")
	results.OneOf(task.GetStatus().GetState(), v1.TaskState_TASK_STATE_SUBMITTED, v1.TaskState_TASK_STATE_WORKING)
	canceled := results.Must(call(c.CancelTask, &v1.CancelTaskRequest{Id: task.GetId()}))
	results.Equal(canceled.GetId(), task.GetId())
	results.Equal(canceled.GetStatus().GetState(), v1.TaskState_TASK_STATE_CANCELED)
}

func (c *clientV1) subscribe() {
	id := c.start("/slow 60").GetId()
	all := events(c.SubscribeToTask, &v1.SubscribeToTaskRequest{Id: id}, func(event *v1.StreamResponse) {
		if task := event.GetTask(); task != nil {
			results.Equal(task.GetId(), id)
			results.Must(call(c.CancelTask, &v1.CancelTaskRequest{Id: id}))
		}
	})
	results.Equal(all[0].GetTask() != nil, true)
	results.Equal(all[len(all)-1].GetStatusUpdate().GetStatus().GetState(), v1.TaskState_TASK_STATE_CANCELED)
}

func (c *clientV1) error() {
	_, err := call(c.GetTask, &v1.GetTaskRequest{Id: "unknown"})
	checkReason(err, codes.NotFound, "TASK_NOT_FOUND")
}

func (c *clientV1) errorWithField() {
	_, err := call(c.SendMessage, &v1.SendMessageRequest{})
	code, _, badRequest := rejection(err)
	results.Equal(code, codes.InvalidArgument)
	results.Equal(len(badRequest.GetFieldViolations()), 1)
	results.Equal(badRequest.GetFieldViolations()[0].GetField(), "message")
}

func (c *clientV1) filePart() {
	sent := &v1.Part{
		Content: &v1.Part_Raw{Raw: raw}, Filename: "four.bin", MediaType: "application/octet-stream",
	}
	equalMessages(c.task(c.text("hello"), sent).GetHistory()[0].GetParts()[1], sent)
	parts := c.task(c.text("/parts")).GetArtifacts()[0].GetParts()
	results.Equal(string(parts[1].GetRaw()), "A raw part.\n")
	results.Equal([]string{parts[1].GetFilename(), parts[1].GetMediaType()}, []string{"raw.txt", "text/plain"})
	results.Equal(parts[2].GetUrl(), "https://example.com/map.png")
}

func (c *clientV1) dataPart() {
	value := results.Must(structpb.NewValue(data()))
	sent := &v1.Part{Content: &v1.Part_Data{Data: value}}
	equalMessages(c.task(c.text("hello"), sent).GetHistory()[0].GetParts()[1], sent)
	parts := c.task(c.text("/parts")).GetArtifacts()[0].GetParts()
	equalJSON(parts[3].GetData().AsInterface(), dataOfDemo())
}

// clientV03 is a client of protocol 0.3, which has no method that lists tasks.
type clientV03 struct {
	v03.A2AServiceClient
	agent *v03.AgentCard
}

func newClientV03(server string) *clientV03 {
	card := &v03.AgentCard{}
	// The card of 0.3 has members that the proto file does not have.
	agentCard(server, "0.3", card, protojson.UnmarshalOptions{DiscardUnknown: true})
	for _, i := range card.GetAdditionalInterfaces() {
		if i.GetTransport() == "GRPC" {
			return &clientV03{v03.NewA2AServiceClient(connect(i.GetUrl())), card}
		}
	}
	panic("the agent card has no gRPC interface")
}

func (c *clientV03) tests() []results.Test {
	return []results.Test{
		{Name: "card", Run: c.card},
		{Name: "public_card_is_returned", Run: c.publicCardIsReturned},
		{Name: "send", Run: c.send},
		{Name: "send_with_message_as_reply", Run: c.sendWithMessageAsReply},
		{Name: "stream", Run: c.stream},
		{Name: "get", Run: c.get},
		{Name: "cancel", Run: c.cancel},
		{Name: "subscribe", Run: c.subscribe},
		{Name: "error", Run: c.error},
		{Name: "file_part", Run: c.filePart},
		{Name: "data_part", Run: c.dataPart},
	}
}

func (c *clientV03) text(text string) *v03.Part {
	return &v03.Part{Part: &v03.Part_Text{Text: text}}
}

func (c *clientV03) request(blocking bool, content ...*v03.Part) *v03.SendMessageRequest {
	message := &v03.Message{MessageId: "m", Role: v03.Role_ROLE_USER, Content: content}
	configuration := &v03.SendMessageConfiguration{Blocking: blocking}
	return &v03.SendMessageRequest{Request: message, Configuration: configuration}
}

func (c *clientV03) task(content ...*v03.Part) *v03.Task {
	return results.Must(call(c.SendMessage, c.request(true, content...))).GetTask()
}

func (c *clientV03) start(command string) *v03.Task {
	return results.Must(call(c.SendMessage, c.request(false, c.text(command)))).GetTask()
}

func (c *clientV03) card() {
	results.Equal([]string{c.agent.GetName(), c.agent.GetProtocolVersion()}, []string{"Demo", "0.3.0"})
	var skills []string
	for _, skill := range c.agent.GetSkills() {
		skills = append(skills, skill.GetId())
	}
	results.Equal(skills, []string{"echo", "provoke"})
}

func (c *clientV03) publicCardIsReturned() {
	card := results.Must(call(c.GetAgentCard, &v03.GetAgentCardRequest{}))
	results.Equal([]string{card.GetName(), card.GetProtocolVersion()}, []string{"Demo", "0.3.0"})
	results.Equal(card.GetSupportsAuthenticatedExtendedCard(), false)
}

func (c *clientV03) send() {
	task := c.task(c.text("hello"))
	results.Equal(task.GetStatus().GetState(), v03.TaskState_TASK_STATE_COMPLETED)
	results.Equal(task.GetArtifacts()[0].GetParts()[0].GetText(), "hello")
}

func (c *clientV03) sendWithMessageAsReply() {
	message := results.Must(call(c.SendMessage, c.request(true, c.text("/message hi")))).GetMsg()
	results.Equal(message.GetRole(), v03.Role_ROLE_AGENT)
	results.Equal(message.GetContent()[0].GetText(), "hi")
}

func (c *clientV03) stream() {
	all := events(c.SendStreamingMessage, c.request(true, c.text("/stream 3 1")), nil)
	results.Equal(all[0].GetTask() != nil, true)
	var texts []string
	last := false
	for _, event := range all {
		if update := event.GetArtifactUpdate(); update != nil {
			results.Equal(last, false)
			last = update.GetLastChunk()
			for _, part := range update.GetArtifact().GetParts() {
				texts = append(texts, part.GetText())
			}
		}
	}
	results.Equal(last, true)
	results.Equal(texts, chunks)
	update := all[len(all)-1].GetStatusUpdate()
	results.Equal(update.GetStatus().GetState(), v03.TaskState_TASK_STATE_COMPLETED)
	results.Equal(update.GetFinal(), true)
}

func (c *clientV03) get() {
	sent := c.task(c.text("hello"))
	task := results.Must(call(c.GetTask, &v03.GetTaskRequest{Name: "tasks/" + sent.GetId(), HistoryLength: 1}))
	results.Equal([]string{task.GetId(), task.GetContextId()}, []string{sent.GetId(), sent.GetContextId()})
	equalMessages(task.GetStatus(), sent.GetStatus())
	results.Equal(len(task.GetHistory()), 1)
	results.Equal(task.GetHistory()[0].GetContent()[0].GetText(), "hello")
}

func (c *clientV03) cancel() {
	task := c.start("/slow 60")
	results.OneOf(task.GetStatus().GetState(), v03.TaskState_TASK_STATE_SUBMITTED, v03.TaskState_TASK_STATE_WORKING)
	canceled := results.Must(call(c.CancelTask, &v03.CancelTaskRequest{Name: "tasks/" + task.GetId()}))
	results.Equal(canceled.GetId(), task.GetId())
	results.Equal(canceled.GetStatus().GetState(), v03.TaskState_TASK_STATE_CANCELLED)
}

func (c *clientV03) subscribe() {
	name := "tasks/" + c.start("/slow 60").GetId()
	all := events(c.TaskSubscription, &v03.TaskSubscriptionRequest{Name: name}, func(event *v03.StreamResponse) {
		if task := event.GetTask(); task != nil {
			results.Equal("tasks/"+task.GetId(), name)
			results.Must(call(c.CancelTask, &v03.CancelTaskRequest{Name: name}))
		}
	})
	results.Equal(all[0].GetTask() != nil, true)
	results.Equal(all[len(all)-1].GetStatusUpdate().GetStatus().GetState(), v03.TaskState_TASK_STATE_CANCELLED)
}

func (c *clientV03) error() {
	_, err := call(c.GetTask, &v03.GetTaskRequest{Name: "tasks/unknown"})
	checkReason(err, codes.NotFound, "TASK_NOT_FOUND")
}

func (c *clientV03) filePart() {
	sent := &v03.Part{Part: &v03.Part_File{File: &v03.FilePart{
		File: &v03.FilePart_FileWithBytes{FileWithBytes: raw}, MimeType: "application/octet-stream", Name: "four.bin",
	}}}
	equalMessages(c.task(c.text("hello"), sent).GetHistory()[0].GetContent()[1], sent)
	parts := c.task(c.text("/parts")).GetArtifacts()[0].GetParts()
	file := parts[1].GetFile()
	results.Equal(string(file.GetFileWithBytes()), "A raw part.\n")
	results.Equal([]string{file.GetName(), file.GetMimeType()}, []string{"raw.txt", "text/plain"})
	results.Equal(parts[2].GetFile().GetFileWithUri(), "https://example.com/map.png")
}

func (c *clientV03) dataPart() {
	sent := &v03.Part{Part: &v03.Part_Data{Data: &v03.DataPart{Data: results.Must(structpb.NewStruct(data()))}}}
	equalMessages(c.task(c.text("hello"), sent).GetHistory()[0].GetContent()[1], sent)
	parts := c.task(c.text("/parts")).GetArtifacts()[0].GetParts()
	equalJSON(parts[3].GetData().GetData().AsMap(), dataOfDemo())
}
