// Package runtime holds the host's resources and the memory of values that cross to the host, with the names that wit-bindgen
// expects. It needs nothing of Go's runtime that Go does not export.
package runtime

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"unsafe"
)

// Handle is a resource of the host; 0 after it was given away or dropped.
type Handle struct{ value int32 }

func MakeHandle(value int32) *Handle { return &Handle{value} }

func (h *Handle) Set(value int32) { h.value = value }

func (h *Handle) Use() int32 {
	if h.value == 0 {
		panic("corral: a resource is used after it was given away or dropped")
	}
	return h.value
}

func (h *Handle) Take() int32 {
	h.Use()
	return h.TakeOrNil()
}

func (h *Handle) TakeOrNil() int32 {
	value := h.value
	h.value = 0
	return value
}

// Allocate returns memory that stays until the pinner lets it go. No type of the WIT needs an alignment of more than 8.
func Allocate(pinner *runtime.Pinner, size, _ uintptr) unsafe.Pointer {
	if size == 0 {
		return nil
	}
	pointer := unsafe.Pointer(unsafe.SliceData(make([]uint64, (size+7)/8)))
	pinner.Pin(pointer)
	return pointer
}

const (
	// Calls of the host between two checks of the heap.
	heapInterval = 16
	// Bytes of the smallest heap that is collected.
	minHeap = 4 << 20
)

var (
	// Pins what the host wrote, until the values are made of it.
	received      runtime.Pinner
	receivedBytes uintptr
	calls         int
	heap          = []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	// Collects when the heap is larger.
	heapLimit uint64 = minHeap
)

// EndCall is for the end of a call of the host, when its values are made. Go's collector runs here and nowhere else: it reads the
// clock, which is not allowed while the host calls cabi_realloc.
func EndCall() {
	received.Unpin()
	if calls++; calls%heapInterval != 0 && receivedBytes < minHeap/4 {
		return
	}
	receivedBytes = 0
	if metrics.Read(heap); heap[0].Value.Uint64() > heapLimit {
		runtime.GC()
		metrics.Read(heap)
		heapLimit = max(minHeap, 2*heap[0].Value.Uint64())
	}
}

// Go calls the host while it starts, before it can allocate: the adapter of WASI 0.1 takes its state and its stack from here.
var (
	early   [20 << 10]uint64
	used    uintptr
	started bool
)

func init() {
	started = true
	debug.SetGCPercent(-1)
}

//go:wasmexport cabi_realloc
func reallocate(old unsafe.Pointer, oldSize, align, size uintptr) unsafe.Pointer {
	if !started {
		words := (size + 7) / 8
		if old != nil || used+words > uintptr(len(early)) {
			panic("corral: the adapter needs more memory than expected")
		}
		used += words
		return unsafe.Pointer(&early[used-words])
	}
	pointer := Allocate(&received, size, align)
	receivedBytes += size
	if old != nil {
		copy(unsafe.Slice((*byte)(pointer), size), unsafe.Slice((*byte)(old), oldSize))
	}
	return pointer
}
