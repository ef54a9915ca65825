package corral

import (
	"iter"

	constraints "corral/bindings/imports/corral_inference_constraints"
	inference "corral/bindings/imports/corral_inference_inference"
	blocking "corral/bindings/imports/corral_inference_inference_sync"
	models "corral/bindings/imports/corral_inference_models"
	host "corral/bindings/imports/corral_inference_types"
	"corral/wit/types"
)

// Values of the interface, with its names: a Chunk has Text, Tokens and Logprobs.
type (
	Token        = uint32
	Candidate    = inference.Candidate
	Distribution = inference.Distribution
	Chunk        = inference.Chunk
	Outcome      = inference.Outcome
)

// Model is a model that the deployment may use.
type Model struct {
	Info models.ModelInfo
	host *models.Model
}

// OpenModel opens a model; the default one if the name is empty.
func OpenModel(name string) (*Model, error) {
	wanted := types.None[string]()
	if name != "" {
		wanted = types.Some(name)
	}
	if err := checkText(name); err != nil {
		return nil, err
	}
	model, err := value(blocking.OpenModel(wanted))
	if err != nil {
		return nil, err
	}
	return &Model{end(model.Info()), model}, nil
}

// Tokenize converts text to tokens. With special, control tokens such as <|im_start|> are read as such.
func (m *Model) Tokenize(text string, special bool) ([]Token, error) {
	if err := checkText(text); err != nil {
		return nil, err
	}
	return value(m.host.Tokenize(text, special))
}

// Detokenize converts tokens to text; control tokens are left out. The text may end inside a character.
func (m *Model) Detokenize(tokens []Token) (string, error) {
	text, err := value(m.host.Detokenize(tokens, false))
	return string(text), err
}

// Constraint is a grammar that generated text follows.
type Constraint = constraints.Constraint

// JSONSchema compiles a schema.
func (m *Model) JSONSchema(schema string) (*Constraint, error) {
	return m.compile(schema, constraints.MakeGrammarJsonSchema)
}

// Regex compiles a regular expression that matches the whole text.
func (m *Model) Regex(pattern string) (*Constraint, error) {
	return m.compile(pattern, constraints.MakeGrammarRegex)
}

// Lark compiles a grammar of Lark.
func (m *Model) Lark(grammar string) (*Constraint, error) {
	return m.compile(grammar, constraints.MakeGrammarLark)
}

func (m *Model) compile(text string, grammar func(string) constraints.Grammar) (*Constraint, error) {
	if err := checkText(text); err != nil {
		return nil, err
	}
	return value(blocking.CompileConstraint(m.host, grammar(text)))
}

// Sequence is tokens, and the model's state for them.
type Sequence struct {
	model *Model
	host  *inference.Sequence
}

func (m *Model) sequence(result types.Result[*inference.Sequence, host.Error]) (*Sequence, error) {
	made, err := value(result)
	if err != nil {
		return nil, err
	}
	return &Sequence{m, made}, nil
}

// Sequence makes a sequence of a prompt, after the model's beginning-of-sequence token if it expects one.
func (m *Model) Sequence(prompt string) (*Sequence, error) {
	sequence, err := m.sequence(inference.SequenceCreate(m.host))
	if err == nil && prompt != "" && m.Info.Bos.IsSome() {
		err = sequence.AppendTokens([]Token{m.Info.Bos.Some()})
	}
	if err == nil {
		err = sequence.Append(prompt, false)
	}
	return sequence, err
}

// Restore makes a sequence of a snapshot.
func (m *Model) Restore(name string) (*Sequence, error) {
	if err := checkText(name); err != nil {
		return nil, err
	}
	return m.sequence(blocking.RestoreSnapshot(m.host, name))
}

// Append adds text. With special, control tokens are read as such: not for text from outside.
func (s *Sequence) Append(text string, special bool) error {
	tokens, err := s.model.Tokenize(text, special)
	if err != nil || len(tokens) == 0 {
		return err
	}
	return s.AppendTokens(tokens)
}

func (s *Sequence) AppendTokens(tokens []Token) error {
	_, err := value(s.host.Append(tokens))
	return err
}

// Fork makes a sequence with the same tokens. Nothing is copied or computed again.
func (s *Sequence) Fork() (*Sequence, error) { return s.model.sequence(s.host.Fork()) }

func (s *Sequence) Truncate(length uint32) error {
	_, err := value(s.host.Truncate(length))
	return err
}

func (s *Sequence) Len() int { return int(s.host.Length()) }

// Tokens returns the tokens from a position on.
func (s *Sequence) Tokens(start uint32) []Token { return end(s.host.Tokens(start)) }

// Save keeps the sequence beyond the request, if the deployment grants snapshots.
func (s *Sequence) Save(name string) error {
	if err := checkText(name); err != nil {
		return err
	}
	_, err := value(blocking.SaveSnapshot(s.host, name))
	return err
}

// Drop frees the sequence before the request's end.
func (s *Sequence) Drop() { s.host.Drop() }

// Options of a generation. What is 0 has no effect; without a sampler, always the most likely token is generated.
type Options struct {
	MaxTokens               uint32
	Temperature, TopP, MinP float32
	TopK                    uint32
	Seed                    *uint64
	// At most 16 texts.
	Stop       []string
	Constraint *Constraint
	// Goes on after tokens that end a generation, to MaxTokens.
	IgnoreEOS bool
	// The log probability of each token.
	Logprobs bool
}

func (o Options) host() (options *inference.Options, err error) {
	options = inference.MakeOptions(o.MaxTokens)
	set := func(result types.Result[types.Unit, host.Error]) {
		if _, failed := value(result); err == nil {
			err = failed
		}
	}
	// The temperature comes first, as in OpenAI's API: filters apply to the tempered distribution.
	if o.Temperature != 0 {
		set(options.Temperature(o.Temperature))
	}
	if o.TopK != 0 {
		set(options.TopK(o.TopK))
	}
	if o.TopP != 0 {
		set(options.TopP(o.TopP))
	}
	if o.MinP != 0 {
		set(options.MinP(o.MinP))
	}
	if o.Seed != nil {
		options.Seed(*o.Seed)
	}
	for _, text := range o.Stop {
		if invalid := checkText(text); invalid != nil {
			return options, invalid
		}
		set(options.Stop(text))
	}
	if o.Constraint != nil {
		options.Constrain(o.Constraint)
	}
	if o.IgnoreEOS {
		options.IgnoreEos()
	}
	if o.Logprobs {
		set(options.Logprobs(0))
	}
	return options, err
}

// Generation is a loop that the host runs.
type Generation struct {
	host *blocking.Generation
}

// Generate starts a generation. Start several before you read the first: then they share steps.
func (s *Sequence) Generate(options Options) (*Generation, error) {
	set, err := options.host()
	defer set.Drop()
	if err != nil {
		return nil, err
	}
	generation, err := value(blocking.Generate(s.host, set))
	if err != nil {
		return nil, err
	}
	return &Generation{generation}, nil
}

// Chunks waits for the parts of the output, and ends with the error of a generation that failed.
func (g *Generation) Chunks() iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		for {
			chunk := end(g.host.Read())
			if !chunk.IsSome() {
				break
			}
			if !yield(chunk.Some(), nil) {
				return
			}
		}
		if _, err := g.Outcome(); err != nil {
			yield(Chunk{}, err)
		}
	}
}

// Text waits for the end, and returns the remaining text.
func (g *Generation) Text() (string, error) {
	text := end(g.host.Collect()).Text
	_, err := g.Outcome()
	return text, err
}

// Outcome waits for the end: why it ended, and the number of tokens.
func (g *Generation) Outcome() (Outcome, error) { return value(g.host.Outcome()) }

// Drop cancels the generation.
func (g *Generation) Drop() { g.host.Drop() }

// NextOptions say what to return of a distribution: the Top most likely tokens, or those of Only.
type NextOptions struct {
	Top        uint32
	Only       []Token
	Statistics bool
}

func (o NextOptions) request() inference.NextTokenRequest {
	part := inference.MakeDistributionPartTop(o.Top)
	if o.Only != nil {
		part = inference.MakeDistributionPartOnly(o.Only)
	}
	return inference.NextTokenRequest{Part: part, Statistics: o.Statistics}
}

// Next waits for the distribution of the next token. The plugin chooses, and appends its choice.
func (s *Sequence) Next(options NextOptions) (Distribution, error) {
	return value(blocking.Next(s.host, options.request()))
}

// NextMany does the same for several sequences, at most 256, which share a step.
func NextMany(sequences []*Sequence, options NextOptions) ([]Distribution, error) {
	requests := make([]types.Tuple2[*inference.Sequence, inference.NextTokenRequest], len(sequences))
	for i, sequence := range sequences {
		requests[i].F0, requests[i].F1 = sequence.host, options.request()
	}
	distributions := make([]Distribution, 0, len(sequences))
	for _, result := range end(blocking.NextMany(requests)) {
		distribution, err := value(result)
		if err != nil {
			return nil, err
		}
		distributions = append(distributions, distribution)
	}
	return distributions, nil
}
