// Package results prints result lines of the Go programs, in the form that scripts/sdk-proof counts.
package results

import (
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
)

// Test is a function that panics if the client under test fails.
type Test struct {
	Name string
	Run  func()
}

var failures int

// Run runs the tests of a client.
func Run(client string, tests []Test) {
	for _, test := range tests {
		run(fmt.Sprintf("go %s: %s", client, test.Name), test.Run)
	}
}

func run(name string, test func()) {
	defer func() {
		if cause := recover(); cause != nil {
			failures++
			text := fmt.Sprintf("FAILED %s\n%v\n%s", name, cause, debug.Stack())
			fmt.Println(strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    "))
		} else {
			fmt.Println("ok", name)
		}
	}()
	test()
}

// Exit ends the program, with status 1 if a test failed.
func Exit() {
	if failures > 0 {
		os.Exit(1)
	}
}

// Check panics if there is an error.
func Check(err error) {
	if err != nil {
		panic(err)
	}
}

// Must returns the value, or panics if there is an error.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Equal panics unless the values are equal.
func Equal[T any](actual, expected T) {
	if !reflect.DeepEqual(actual, expected) {
		panic(fmt.Errorf("%#v is not %#v", actual, expected))
	}
}

// OneOf panics unless the value is one of those that are expected.
func OneOf[T comparable](actual T, expected ...T) {
	if !slices.Contains(expected, actual) {
		panic(fmt.Errorf("%v is not one of %v", actual, expected))
	}
}
