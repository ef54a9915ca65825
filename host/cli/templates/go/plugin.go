// Completes the request's body with the deployment's model.
package main

import "corral"

func init() { corral.Handle(complete) }

func complete(request *corral.Request) error {
	prompt, err := request.Text()
	if err != nil {
		return err
	}
	model, err := corral.OpenModel("")
	if err != nil {
		return err
	}
	sequence, err := model.Sequence(prompt)
	if err != nil {
		return err
	}
	generation, err := sequence.Generate(corral.Options{MaxTokens: 64})
	if err != nil {
		return err
	}
	answer, err := generation.Text()
	if err != nil {
		return err
	}
	return request.Respond(200, "text/plain; charset=utf-8", []byte(answer))
}

// The host calls the handler only.
func main() {}
