package main

import (
	"context"
	"net/http"

	a2a "sdk/generated/a2av03"
	"sdk/results"
)

// clientV03 is a client of protocol 0.3.
type clientV03 struct {
	*a2a.ClientWithResponses
}

func newClientV03(server string) *clientV03 {
	editor := a2a.WithRequestEditorFn(version("0.3"))
	return &clientV03{results.Must(a2a.NewClientWithResponses(server, editor))}
}

func (c *clientV03) tests() []results.Test {
	return []results.Test{
		{Name: "card", Run: c.card},
		{Name: "extended_card_is_rejected", Run: c.extendedCardIsRejected},
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

func (c *clientV03) text(text string) a2a.Part {
	var part a2a.Part
	results.Check(part.FromPartText(a2a.PartText{Text: text}))
	return part
}

func (c *clientV03) texts(parts []a2a.Part) []string {
	var texts []string
	for _, part := range parts {
		texts = append(texts, results.Must(part.AsPartText()).Text)
	}
	return texts
}

func (c *clientV03) request(blocking bool, content ...a2a.Part) a2a.SendMessageRequest {
	message := a2a.Message{MessageId: "m", Role: a2a.ROLEUSER, Content: content}
	configuration := &a2a.SendMessageConfiguration{Blocking: &blocking}
	return a2a.SendMessageRequest{Message: message, Configuration: configuration}
}

func (c *clientV03) sendRequest(request a2a.SendMessageRequest) a2a.SendMessageResponse {
	return value(results.Must(c.SendMessageWithResponse(context.Background(), nil, request)).JSON200)
}

func (c *clientV03) task(content ...a2a.Part) a2a.Task {
	response := c.sendRequest(c.request(true, content...))
	results.Equal(kind(response), "task")
	return results.Must(response.AsSendMessageResponseTask()).Task
}

func (c *clientV03) start(command string) a2a.Task {
	return results.Must(c.sendRequest(c.request(false, c.text(command))).AsSendMessageResponseTask()).Task
}

func (c *clientV03) cancelTask(id string) a2a.Task {
	response := results.Must(c.CancelTaskWithResponse(context.Background(), id, nil, a2a.CancelTaskJSONRequestBody{}))
	return value(response.JSON200)
}

// checkError checks the reason of an error.
func (c *clientV03) checkError(body *a2a.ErrorResponse, reason string) {
	info := results.Must(value(body).Error.Details[0].AsErrorInfo())
	results.Equal([]string{info.Reason, info.Domain}, []string{reason, "a2a-protocol.org"})
}

func (c *clientV03) card() {
	card := value(results.Must(c.GetPublicAgentCardWithResponse(context.Background(), nil)).JSON200)
	results.Equal([]string{card.Name, card.ProtocolVersion}, []string{"Demo", "0.3.0"})
	results.Equal([]string{card.Skills[0].Id, card.Skills[1].Id}, []string{"echo", "provoke"})
}

func (c *clientV03) extendedCardIsRejected() {
	response := results.Must(c.GetAgentCardWithResponse(context.Background(), nil))
	c.checkError(response.JSON404, "EXTENDED_AGENT_CARD_NOT_CONFIGURED")
}

func (c *clientV03) send() {
	task := c.task(c.text("hello"))
	results.Equal(value(task.Status.State), a2a.TASKSTATECOMPLETED)
	results.Equal(c.texts(value(value(task.Artifacts)[0].Parts)), []string{"hello"})
}

func (c *clientV03) sendWithMessageAsReply() {
	response := c.sendRequest(c.request(true, c.text("/message hi")))
	results.Equal(kind(response), "message")
	message := results.Must(response.AsSendMessageResponseMsg()).Message
	results.Equal(message.Role, a2a.ROLEAGENT)
	results.Equal(c.texts(message.Content), []string{"hi"})
}

func (c *clientV03) stream() {
	request := c.request(true, c.text("/stream 3 1"))
	response := results.Must(c.SendStreamingMessage(context.Background(), nil, request))
	all := events[a2a.StreamResponse](response, nil)
	results.Equal(kind(all[0]), "task")
	var texts []string
	last := false
	for _, event := range all {
		if kind(event) == "artifactUpdate" {
			results.Equal(last, false)
			update := results.Must(event.AsStreamResponseArtifactUpdate()).ArtifactUpdate
			last = update.LastChunk != nil && *update.LastChunk
			texts = append(texts, c.texts(value(update.Artifact.Parts))...)
		}
	}
	results.Equal(last, true)
	results.Equal(texts, chunks)
	end := results.Must(all[len(all)-1].AsStreamResponseStatusUpdate()).StatusUpdate
	results.Equal(value(end.Status.State), a2a.TASKSTATECOMPLETED)
	results.Equal(value(end.Final), true)
}

func (c *clientV03) get() {
	sent := c.task(c.text("hello"))
	parameters := &a2a.GetTaskParams{HistoryLength: pointer(int32(1))}
	task := value(results.Must(c.GetTaskWithResponse(context.Background(), value(sent.Id), parameters)).JSON200)
	results.Equal([]*string{task.Id, task.ContextId}, []*string{sent.Id, sent.ContextId})
	results.Equal(task.Status, sent.Status)
	results.Equal(len(value(task.History)), 1)
	results.Equal(c.texts(value(task.History)[0].Content), []string{"hello"})
}

func (c *clientV03) cancel() {
	task := c.start("/slow 60")
	results.OneOf(value(task.Status.State), a2a.TASKSTATESUBMITTED, a2a.TASKSTATEWORKING)
	canceled := c.cancelTask(value(task.Id))
	results.Equal(canceled.Id, task.Id)
	results.Equal(value(canceled.Status.State), a2a.TASKSTATECANCELLED)
}

func (c *clientV03) subscribe() {
	id := value(c.start("/slow 60").Id)
	response := results.Must(c.TaskSubscription(context.Background(), id, nil))
	all := events(response, func(event a2a.StreamResponse) {
		if kind(event) == "task" {
			results.Equal(value(results.Must(event.AsStreamResponseTask()).Task.Id), id)
			c.cancelTask(id)
		}
	})
	results.Equal(kind(all[0]), "task")
	end := results.Must(all[len(all)-1].AsStreamResponseStatusUpdate()).StatusUpdate
	results.Equal(value(end.Status.State), a2a.TASKSTATECANCELLED)
}

func (c *clientV03) error() {
	response := results.Must(c.GetTaskWithResponse(context.Background(), "unknown", nil))
	results.Equal(response.StatusCode(), http.StatusNotFound)
	c.checkError(response.JSON404, "TASK_NOT_FOUND")
	results.Equal(response.JSON404.Type, "TaskNotFoundError")
}

func (c *clientV03) filePart() {
	var sent a2a.Part
	file := a2a.FilePartFileWithBytes{
		FileWithBytes: raw, MimeType: pointer("application/octet-stream"), Name: pointer("four.bin"),
	}
	var part a2a.PartFile
	results.Check(part.File.FromFilePartFileWithBytes(file))
	results.Check(sent.FromPartFile(part))
	received := value(c.task(c.text("hello"), sent).History)[0].Content[1]
	results.Equal(results.Must(results.Must(received.AsPartFile()).File.AsFilePartFileWithBytes()), file)
	parts := value(value(c.task(c.text("/parts")).Artifacts)[0].Parts)
	demo := results.Must(results.Must(parts[1].AsPartFile()).File.AsFilePartFileWithBytes())
	results.Equal(string(demo.FileWithBytes), "A raw part.\n")
	results.Equal([]string{value(demo.Name), value(demo.MimeType)}, []string{"raw.txt", "text/plain"})
	url := results.Must(results.Must(parts[2].AsPartFile()).File.AsFilePartFileWithUri())
	results.Equal(url.FileWithUri, "https://example.com/map.png")
}

func (c *clientV03) dataPart() {
	var sent a2a.Part
	results.Check(sent.FromPartData(a2a.PartData{Data: a2a.DataPart{Data: pointer(a2a.Struct(data))}}))
	received := value(c.task(c.text("hello"), sent).History)[0].Content[1]
	equalJSON(received, sent)
	parts := value(value(c.task(c.text("/parts")).Artifacts)[0].Parts)
	equalJSON(value(results.Must(parts[3].AsPartData()).Data.Data), dataOfDemo)
}
