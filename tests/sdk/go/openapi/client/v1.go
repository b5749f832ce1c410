package main

import (
	"context"
	"net/http"

	a2a "sdk/generated/a2av1"
	"sdk/results"
)

// clientV1 is a client of protocol 1.0.
type clientV1 struct {
	*a2a.ClientWithResponses
	server string
}

func newClientV1(server string) *clientV1 {
	editor := a2a.WithRequestEditorFn(version("1.0"))
	return &clientV1{results.Must(a2a.NewClientWithResponses(server, editor)), server}
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

func (c *clientV1) text(text string) a2a.Part {
	var part a2a.Part
	results.Check(part.FromPartText(a2a.PartText{Text: text}))
	return part
}

func (c *clientV1) texts(parts []a2a.Part) []string {
	var texts []string
	for _, part := range parts {
		texts = append(texts, results.Must(part.AsPartText()).Text)
	}
	return texts
}

func (c *clientV1) request(parts ...a2a.Part) a2a.SendMessageRequest {
	message := a2a.Message{MessageId: "m", Role: a2a.ROLEUSER, Parts: parts}
	return a2a.SendMessageRequest{Message: message}
}

func (c *clientV1) sendRequest(request a2a.SendMessageRequest) a2a.SendMessageResponse {
	return value(results.Must(c.SendMessageWithResponse(context.Background(), nil, request)).JSON200)
}

func (c *clientV1) task(parts ...a2a.Part) a2a.Task {
	response := c.sendRequest(c.request(parts...))
	results.Equal(kind(response), "task")
	return results.Must(response.AsSendMessageResponseTask()).Task
}

func (c *clientV1) start(command string) a2a.Task {
	request := c.request(c.text(command))
	request.Configuration = &a2a.SendMessageConfiguration{ReturnImmediately: pointer(true)}
	return results.Must(c.sendRequest(request).AsSendMessageResponseTask()).Task
}

func (c *clientV1) cancelTask(id string) a2a.Task {
	response := results.Must(c.CancelTaskWithResponse(context.Background(), id, nil, a2a.CancelTaskJSONRequestBody{}))
	return value(response.JSON200)
}

// checkError checks the reason of an error.
func (c *clientV1) checkError(body *a2a.ErrorResponse, reason string) {
	info := results.Must(value(body).Error.Details[0].AsErrorInfo())
	results.Equal([]string{info.Reason, info.Domain}, []string{reason, "a2a-protocol.org"})
}

func (c *clientV1) card() {
	card := value(results.Must(c.GetPublicAgentCardWithResponse(context.Background(), nil)).JSON200)
	results.Equal(card.Name, "Demo")
	results.Equal(value(card.Capabilities.Streaming), true)
	results.Equal([]string{card.Skills[0].Id, card.Skills[1].Id}, []string{"echo", "provoke"})
	found := false
	for _, i := range card.SupportedInterfaces {
		found = found || i.Url == c.server && i.ProtocolBinding == "HTTP+JSON" && i.ProtocolVersion == "1.0"
	}
	results.Equal(found, true)
}

func (c *clientV1) extendedCardIsRejected() {
	response := results.Must(c.GetExtendedAgentCardWithResponse(context.Background(), nil))
	c.checkError(response.JSON400, "UNSUPPORTED_OPERATION")
}

func (c *clientV1) send() {
	task := c.task(c.text("hello"))
	results.Equal(task.Status.State, a2a.TASKSTATECOMPLETED)
	results.Equal(c.texts(value(task.Artifacts)[0].Parts), []string{"hello"})
}

func (c *clientV1) sendWithMessageAsReply() {
	response := c.sendRequest(c.request(c.text("/message hi")))
	results.Equal(kind(response), "message")
	message := results.Must(response.AsSendMessageResponseMessage()).Message
	results.Equal(message.Role, a2a.ROLEAGENT)
	results.Equal(c.texts(message.Parts), []string{"hi"})
}

func (c *clientV1) stream() {
	response := results.Must(c.SendStreamingMessage(context.Background(), nil, c.request(c.text("/stream 3 1"))))
	all := events[a2a.StreamResponse](response, nil)
	results.Equal(kind(all[0]), "task")
	var texts []string
	last := false
	for _, event := range all {
		if kind(event) == "artifactUpdate" {
			results.Equal(last, false)
			update := results.Must(event.AsStreamResponseArtifactUpdate()).ArtifactUpdate
			last = update.LastChunk != nil && *update.LastChunk
			texts = append(texts, c.texts(update.Artifact.Parts)...)
		}
	}
	results.Equal(last, true)
	results.Equal(texts, chunks)
	end := results.Must(all[len(all)-1].AsStreamResponseStatusUpdate()).StatusUpdate
	results.Equal(end.Status.State, a2a.TASKSTATECOMPLETED)
}

func (c *clientV1) get() {
	sent := c.task(c.text("hello"))
	get := func(historyLength int32) a2a.Task {
		parameters := &a2a.GetTaskParams{HistoryLength: &historyLength}
		return value(results.Must(c.GetTaskWithResponse(context.Background(), sent.Id, parameters)).JSON200)
	}
	task := get(1)
	results.Equal([]string{task.Id, value(task.ContextId)}, []string{sent.Id, value(sent.ContextId)})
	results.Equal(task.Status, sent.Status)
	results.Equal(value(task.Status.Timestamp).IsZero(), false)
	results.Equal(len(value(task.History)), 1)
	results.Equal(c.texts(value(task.History)[0].Parts), []string{"hello"})
	results.Equal(get(0).History == nil, true)
}

func (c *clientV1) list() {
	first := c.task(c.text("first"))
	request := c.request(c.text("second"))
	request.Message.ContextId = first.ContextId
	second := results.Must(c.sendRequest(request).AsSendMessageResponseTask()).Task
	page := &a2a.ListTasksParams{
		ContextId: first.ContextId, PageSize: pointer(int32(1)), Status: pointer(a2a.TASKSTATECOMPLETED),
	}
	var ids []string
	for range 2 {
		response := value(results.Must(c.ListTasksWithResponse(context.Background(), page)).JSON200)
		results.Equal([]int32{response.PageSize, response.TotalSize}, []int32{1, 2})
		for _, task := range response.Tasks {
			ids = append(ids, task.Id)
		}
		page.PageToken = &response.NextPageToken
	}
	results.Equal(value(page.PageToken), "")
	results.Equal(ids, []string{second.Id, first.Id})
}

func (c *clientV1) cancel() {
	task := c.start("/slow 60")
	results.OneOf(task.Status.State, a2a.TASKSTATESUBMITTED, a2a.TASKSTATEWORKING)
	canceled := c.cancelTask(task.Id)
	results.Equal(canceled.Id, task.Id)
	results.Equal(canceled.Status.State, a2a.TASKSTATECANCELED)
}

func (c *clientV1) subscribe() {
	id := c.start("/slow 60").Id
	response := results.Must(c.SubscribeToTask(context.Background(), id, nil))
	all := events(response, func(event a2a.StreamResponse) {
		if kind(event) == "task" {
			results.Equal(results.Must(event.AsStreamResponseTask()).Task.Id, id)
			c.cancelTask(id)
		}
	})
	results.Equal(kind(all[0]), "task")
	end := results.Must(all[len(all)-1].AsStreamResponseStatusUpdate()).StatusUpdate
	results.Equal(end.Status.State, a2a.TASKSTATECANCELED)
}

func (c *clientV1) error() {
	response := results.Must(c.GetTaskWithResponse(context.Background(), "unknown", nil))
	results.Equal(response.StatusCode(), http.StatusNotFound)
	c.checkError(response.JSON404, "TASK_NOT_FOUND")
}

func (c *clientV1) errorWithField() {
	request := a2a.SendMessageRequest{Message: a2a.Message{MessageId: "m", Role: a2a.ROLEUSER, Parts: []a2a.Part{}}}
	response := results.Must(c.SendMessageWithResponse(context.Background(), nil, request))
	c.checkError(response.JSON400, "INVALID_PARAMS")
	for _, detail := range response.JSON400.Error.Details {
		if badRequest, found := results.Must(detail.ValueByDiscriminator()).(a2a.BadRequest); found {
			results.Equal(len(badRequest.FieldViolations), 1)
			results.Equal(badRequest.FieldViolations[0].Field, "message.parts")
			return
		}
	}
	panic("the error has no BadRequest")
}

func (c *clientV1) filePart() {
	var sent a2a.Part
	file := a2a.PartRaw{Raw: raw, Filename: pointer("four.bin"), MediaType: pointer("application/octet-stream")}
	results.Check(sent.FromPartRaw(file))
	received := value(c.task(c.text("hello"), sent).History)[0].Parts[1]
	results.Equal(results.Must(received.AsPartRaw()), file)
	parts := value(c.task(c.text("/parts")).Artifacts)[0].Parts
	demo := results.Must(parts[1].AsPartRaw())
	results.Equal(string(demo.Raw), "A raw part.\n")
	results.Equal([]string{value(demo.Filename), value(demo.MediaType)}, []string{"raw.txt", "text/plain"})
	results.Equal(results.Must(parts[2].AsPartUrl()).Url, "https://example.com/map.png")
}

func (c *clientV1) dataPart() {
	var sent a2a.Part
	results.Check(sent.FromPartData(a2a.PartData{Data: data}))
	received := value(c.task(c.text("hello"), sent).History)[0].Parts[1]
	equalJSON(received, sent)
	parts := value(c.task(c.text("/parts")).Artifacts)[0].Parts
	equalJSON(results.Must(parts[3].AsPartData()).Data, dataOfDemo)
}
