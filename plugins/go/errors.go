package corral

import (
	"fmt"
	"unicode/utf8"

	host "corral/bindings/imports/corral_inference_types"
	"corral/wit/runtime"
	"corral/wit/types"
)

// Error is an error of the host or of the plugin. The client gets its status, code and detail.
type Error struct {
	// From 400 to 599.
	Status int
	// Stable: clients may match on it. The host's are `invalid`, `not-found`, `not-granted`, `context-full`, `refused`,
	// `deadline`, `cancelled` and `failed`.
	Code   string
	Detail string
	// Seconds until a retry can succeed; 0 if unknown.
	RetryAfter int
}

func (e *Error) Error() string { return e.Detail }

// Fail is an error of the plugin.
func Fail(status int, code, format string, values ...any) error {
	return &Error{Status: status, Code: code, Detail: fmt.Sprintf(format, values...)}
}

func hostError(err host.Error) error {
	switch err.Tag() {
	case host.Error_Invalid:
		return &Error{Status: 400, Code: "invalid", Detail: err.Invalid()}
	case host.Error_NotFound:
		return &Error{Status: 404, Code: "not-found", Detail: err.NotFound()}
	case host.Error_NotGranted:
		return &Error{Status: 403, Code: "not-granted", Detail: err.NotGranted()}
	case host.Error_ContextFull:
		limit := err.ContextFull()
		return Fail(400, "context-full", "the call needs %d positions; a sequence may have %d", limit.Needed, limit.Limit)
	case host.Error_Refused:
		refusal := err.Refused()
		seconds := max(1, (int(refusal.RetryAfterMs)+999)/1000)
		return &Error{Status: 429, Code: "refused", Detail: refusal.Reason, RetryAfter: seconds}
	case host.Error_Deadline:
		return &Error{Status: 504, Code: "deadline", Detail: "the request's deadline passed"}
	case host.Error_Cancelled:
		return &Error{Status: 499, Code: "cancelled", Detail: "the request was canceled"}
	default:
		return &Error{Status: 500, Code: "failed", Detail: err.Failed()}
	}
}

// end is for the value of a call of the host that cannot fail.
func end[T any](value T) T {
	runtime.EndCall()
	return value
}

// value is what a call of the host returned.
func value[T any](result types.Result[T, host.Error]) (T, error) {
	runtime.EndCall()
	if result.IsErr() {
		return result.Ok(), hostError(result.Err())
	}
	return result.Ok(), nil
}

// checkText refuses what the host would: it takes UTF-8 only.
func checkText(text string) error {
	if !utf8.ValidString(text) {
		return Fail(400, "invalid", "a text is not UTF-8")
	}
	return nil
}
