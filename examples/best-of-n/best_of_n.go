// Samples several answers to one prompt and returns the one that the model finds most likely. The Rust form is `src/lib.rs`.
package main

import (
	"cmp"
	"math"
	"slices"

	"corral"
)

type answer struct {
	Text        string  `json:"text"`
	MeanLogprob float64 `json:"mean_logprob"`
}

func init() { corral.Handle(bestOfN) }

func main() {}

func bestOfN(request *corral.Request) error {
	body := struct {
		Prompt      string  `json:"prompt"`
		N           int     `json:"n"`
		Temperature float32 `json:"temperature"`
		Seed        uint64  `json:"seed"`
		MaxTokens   uint32  `json:"max_tokens"`
		IgnoreEOS   bool    `json:"ignore_eos"`
	}{N: 8, Temperature: 1, MaxTokens: 64}
	if err := request.JSON(&body); err != nil {
		return err
	}
	if body.N < 1 || body.N > 64 {
		return corral.Fail(400, "invalid-n", "n is %d; expected 1 to 64", body.N)
	}
	model, err := corral.OpenModel("")
	if err != nil {
		return err
	}
	prompt, err := model.Sequence(body.Prompt)
	if err != nil {
		return err
	}
	// All generations start before the first is read, so that they share steps. They are forks of one sequence: the host
	// computes the prompt once.
	var generations []*corral.Generation
	for i := range body.N {
		fork, err := prompt.Fork()
		if err != nil {
			return err
		}
		seed := body.Seed + uint64(i)
		generation, err := fork.Generate(corral.Options{
			MaxTokens:   body.MaxTokens,
			Temperature: body.Temperature,
			Seed:        &seed,
			IgnoreEOS:   body.IgnoreEOS,
			Logprobs:    true,
		})
		if err != nil {
			return err
		}
		generations = append(generations, generation)
	}
	var answers []answer
	var computed uint32
	for _, generation := range generations {
		text, sum := "", 0.0
		for chunk, err := range generation.Chunks() {
			if err != nil {
				return err
			}
			text += chunk.Text
			for _, token := range chunk.Logprobs {
				sum += float64(token.Logprob)
			}
		}
		outcome, err := generation.Outcome()
		if err != nil {
			return err
		}
		computed += outcome.PromptTokens - outcome.CachedTokens
		mean := sum / float64(outcome.GeneratedTokens)
		// Adding 0 turns -0 into 0.
		rounded := math.Round(mean*1000)/1000 + 0
		answers = append(answers, answer{text, rounded})
	}
	// Of equal answers the first.
	slices.SortStableFunc(answers, func(one, other answer) int {
		return cmp.Compare(other.MeanLogprob, one.MeanLogprob)
	})
	return request.RespondJSON(map[string]any{
		"text":                   answers[0].Text,
		"prompt_tokens":          prompt.Len(),
		"prompt_tokens_computed": computed,
		"answers":                answers,
	})
}
