// What the template does not use of the SDK: the last part of the path names it.
package main

import (
	"fmt"
	"os"
	"path"
	"slices"

	"corral"
)

func init() { corral.Handle(handle) }

func main() {}

func generate(prompt string, options corral.Options) (*corral.Generation, error) {
	model, err := corral.OpenModel("")
	if err != nil {
		return nil, err
	}
	sequence, err := model.Sequence(prompt)
	if err != nil {
		return nil, err
	}
	return sequence.Generate(options)
}

func respond(request *corral.Request, text string) error {
	return request.Respond(200, "text/plain", []byte(text))
}

// Events of the text, and one with a name and two lines, which a carriage return separates.
func events(request *corral.Request, prompt string) error {
	generation, err := generate(prompt, corral.Options{MaxTokens: 8})
	if err != nil {
		return err
	}
	for chunk, err := range generation.Chunks() {
		if err != nil {
			return err
		}
		if chunk.Text == "" {
			continue
		}
		if err := request.Event("", chunk.Text); err != nil {
			return err
		}
	}
	outcome, err := generation.Outcome()
	if err != nil {
		return err
	}
	return request.Event("end", fmt.Sprintf("%d tokens\rfinish %d", outcome.GeneratedTokens, outcome.Finish))
}

// Greedy sampling of two forks at once, with a step back.
func many(request *corral.Request, prompt string) error {
	model, err := corral.OpenModel("")
	if err != nil {
		return err
	}
	one, err := model.Sequence(prompt)
	if err != nil {
		return err
	}
	other, err := one.Fork()
	if err != nil {
		return err
	}
	start := uint32(one.Len())
	if err := one.Append("5", false); err != nil {
		return err
	}
	if err := one.Truncate(start); err != nil {
		return err
	}
	for range 8 {
		found, err := corral.NextMany([]*corral.Sequence{one, other}, corral.NextOptions{Top: 2})
		if err != nil {
			return err
		}
		token := found[0].Candidates[0].Token
		if token != found[1].Candidates[0].Token {
			return corral.Fail(500, "different", "the sequences differ")
		}
		if slices.Contains(model.Info.EndOfGeneration, token) {
			break
		}
		for _, sequence := range []*corral.Sequence{one, other} {
			if err := sequence.AppendTokens([]corral.Token{token}); err != nil {
				return err
			}
		}
	}
	tokens := other.Tokens(start)
	found, err := other.Next(corral.NextOptions{Only: tokens, Statistics: true})
	if err != nil {
		return err
	}
	if len(found.Candidates) != len(tokens) || !found.Statistics.IsSome() {
		return corral.Fail(500, "different", "not the tokens of Only")
	}
	one.Drop()
	text, err := model.Detokenize(tokens)
	if err != nil {
		return err
	}
	return respond(request, text)
}

func constrained(request *corral.Request, pattern string) error {
	model, err := corral.OpenModel("")
	if err != nil {
		return err
	}
	constraint, err := model.Regex(pattern)
	if err != nil {
		return err
	}
	seed := uint64(5)
	generation, err := generate("12+7=", corral.Options{
		MaxTokens: 8, Temperature: 2, TopK: 50, TopP: 0.9, MinP: 0.01, Seed: &seed, Constraint: constraint,
	})
	if err != nil {
		return err
	}
	text, err := generation.Text()
	if err != nil {
		return err
	}
	return respond(request, text)
}

func stopped(request *corral.Request) error {
	generation, err := generate("12+7=", corral.Options{MaxTokens: 8, Stop: []string{"9"}})
	if err != nil {
		return err
	}
	text, err := generation.Text()
	if err != nil {
		return err
	}
	outcome, err := generation.Outcome()
	if err != nil {
		return err
	}
	return respond(request, fmt.Sprintf("%s %d", text, outcome.Finish))
}

func handle(request *corral.Request) error {
	name := path.Base(request.Path)
	if name == "json" {
		var body struct{ Prompt string }
		if err := request.JSON(&body); err != nil {
			return err
		}
		return request.RespondJSON(body)
	}
	body, err := request.Text()
	if err != nil {
		return err
	}
	switch name {
	case "events":
		return events(request, body)
	case "error-after-events":
		if err := request.Event("", "first"); err != nil {
			return err
		}
		return corral.Fail(409, "over", "it is \"over\"")
	case "error-after-response":
		if err := respond(request, "whole"); err != nil {
			return err
		}
		return corral.Fail(409, "over", "it is over")
	case "many":
		return many(request, body)
	case "constrained":
		return constrained(request, body)
	case "stopped":
		return stopped(request)
	case "parts":
		text := fmt.Sprintf("%s %s ?%s %s %q %s", request.Method, request.Path, request.Query, request.Header("x-name"),
			request.Header("x-none"), os.Getenv("tone"))
		return respond(request, text)
	case "missing-model":
		_, err = corral.OpenModel("none")
	case "generate":
		_, err = generate(body, corral.Options{MaxTokens: 8})
	case "no-text":
		_, err = corral.OpenModel("\xff")
	case "no-status":
		err = request.Respond(99, "text/plain", nil)
	case "no-error-status":
		err = corral.Fail(200, "odd", "it is an error with the status of a success")
	case "other-error":
		err = os.ErrNotExist
	case "conflict":
		err = corral.Fail(409, "conflict", "it is there already")
	}
	return err
}
