// The workloads `none` and `top` of `src/lib.rs`, for `corral-bench languages`.
package main

import (
	"strconv"
	"strings"

	"corral"
)

// Candidates per token of `top`.
const candidates = 64

func init() { corral.Handle(handle) }

func main() {}

func handle(request *corral.Request) error {
	count, err := strconv.Atoi(strings.TrimPrefix(request.Query, "count="))
	if err != nil {
		return err
	}
	prompt, err := request.Text()
	if err != nil {
		return err
	}
	done := count
	if !strings.HasSuffix(request.Path, "/none") {
		if done, err = top(prompt, count); err != nil {
			return err
		}
	}
	return request.Respond(200, "text/plain; charset=utf-8", []byte(strconv.Itoa(done)))
}

func top(prompt string, count int) (int, error) {
	model, err := corral.OpenModel("")
	if err != nil {
		return 0, err
	}
	sequence, err := model.Sequence(prompt)
	if err != nil {
		return 0, err
	}
	start := sequence.Len()
	for range count {
		distribution, err := sequence.Next(corral.NextOptions{Top: candidates})
		if err != nil {
			return 0, err
		}
		token := distribution.Candidates[0].Token
		if err := sequence.AppendTokens([]corral.Token{token}); err != nil {
			return 0, err
		}
	}
	return sequence.Len() - start, nil
}
