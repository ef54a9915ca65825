// Package types has the types of the WIT that Go lacks, with the names that wit-bindgen expects.
package types

// Unit is the value of a result that has none.
type Unit struct{}

// Tuple2 is a pair.
type Tuple2[A, B any] struct {
	F0 A
	F1 B
}

// The tags of an option and of a result.
const (
	OptionNone uint8 = iota
	OptionSome
)
const (
	ResultOk uint8 = iota
	ResultErr
)

// Option is a value that may be missing.
type Option[T any] struct {
	tag   uint8
	value T
}

// Some is an option with a value.
func Some[T any](value T) Option[T] { return Option[T]{OptionSome, value} }

// None is an option without one.
func None[T any]() Option[T] { return Option[T]{} }

func (o Option[T]) Tag() uint8   { return o.tag }
func (o Option[T]) IsSome() bool { return o.tag == OptionSome }

// Some returns the value; the zero value without one.
func (o Option[T]) Some() T { return o.value }

// Result is a value or an error.
type Result[T, E any] struct {
	tag   uint8
	value T
	err   E
}

// Ok is a result with a value.
func Ok[T, E any](value T) Result[T, E] { return Result[T, E]{tag: ResultOk, value: value} }

// Err is a result with an error.
func Err[T, E any](err E) Result[T, E] { return Result[T, E]{tag: ResultErr, err: err} }

func (r Result[T, E]) Tag() uint8  { return r.tag }
func (r Result[T, E]) IsErr() bool { return r.tag == ResultErr }

// Ok returns the value; the zero value after an error.
func (r Result[T, E]) Ok() T { return r.value }

// Err returns the error; the zero value without one.
func (r Result[T, E]) Err() E { return r.err }
