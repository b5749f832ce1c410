// HTTP+JSON clients of protocol 1.0 and 0.3 on code that oapi-codegen generates from openapi/: go run ./client URL
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"sdk/results"
)

const timeout = 20 * time.Second

var (
	// The server may join chunks, so an update may have several parts.
	chunks     = []string{"chunk 1 of 3\n", "chunk 2 of 3\n", "chunk 3 of 3\n"}
	data       = map[string]any{"city": "Lisbon", "numbers": []any{1.0, 2.5}, "nothing": nil}
	dataOfDemo = map[string]any{"a": "data part", "numbers": []any{1.0, 2.5}, "nothing": nil}
	raw        = []byte{0, 1, 254, 255}
)

func main() {
	server := os.Args[1]
	http.DefaultClient.Timeout = timeout
	results.Run("HTTP+JSON 1.0", newClientV1(server).tests())
	results.Run("HTTP+JSON 0.3", newClientV03(server).tests())
	results.Exit()
}

// version returns a function that sets the protocol version of a request.
func version(value string) func(context.Context, *http.Request) error {
	return func(_ context.Context, request *http.Request) error {
		request.Header.Set("A2A-Version", value)
		return nil
	}
}

// value returns what a pointer refers to.
func value[T any](pointer *T) T {
	if pointer == nil {
		panic(fmt.Errorf("no %T", pointer))
	}
	return *pointer
}

func pointer[T any](value T) *T {
	return &value
}

// events reads the events of a stream, whose request the generated code sends. It calls received with each of them, unless
// that is nil.
func events[Event any](response *http.Response, received func(Event)) []Event {
	defer response.Body.Close()
	results.Equal(response.StatusCode, http.StatusOK)
	var all []Event
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if line, found := strings.CutPrefix(lines.Text(), "data:"); found {
			var event Event
			results.Check(json.Unmarshal([]byte(line), &event))
			all = append(all, event)
			if received != nil {
				received(event)
			}
		}
	}
	results.Check(lines.Err())
	return all
}

// kind returns the name of the only member of a union, which an `As` function of the generated code reads.
func kind(union json.Marshaler) string {
	var members map[string]json.RawMessage
	results.Check(json.Unmarshal(results.Must(union.MarshalJSON()), &members))
	results.Equal(len(members), 1)
	for name := range members {
		return name
	}
	return ""
}

func equalJSON(actual, expected any) {
	var decoded [2]any
	for i, value := range []any{actual, expected} {
		results.Check(json.Unmarshal(results.Must(json.Marshal(value)), &decoded[i]))
	}
	results.Equal(decoded[0], decoded[1])
}
