// The log callback of llama.cpp, which can end a load.
//
// llama.cpp calls back for each tensor that it reads, but not while it reads the header of a file. It logs there, and an
// exception from the callback ends the load as its own exceptions do. The lines that end a load come from C++ within the
// `try` of `llama_model_load`, on the thread that loads: the exception passes no frame of C or Rust.

#include <stdexcept>

using OnLine = bool (*)(unsigned level, const char * text);

// `on_line` returns false if the load that logs has to end.
extern "C" void corral_log(unsigned level, const char * text, void * on_line) {
    if (!reinterpret_cast<OnLine>(on_line)(level, text)) {
        throw std::runtime_error("the load was ended");
    }
}
