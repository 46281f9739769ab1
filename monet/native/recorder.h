// The recorder: what a thread requests and releases while an operator runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace {

struct Event {
  int64_t index;
  int64_t bytes;  // -1: the request was freed
  int64_t pointer;
};

struct Recorder {
  uint64_t number;
  int64_t requests = 0;
  std::vector<Event> events;
};

thread_local Recorder* recorder = nullptr;
std::atomic<uint64_t> recordings{0};  // how many there have been

[[maybe_unused]] void begin_recording() {
  delete recorder;
  recorder = new Recorder;
  recorder->number = ++recordings;
}

[[maybe_unused]] int64_t recorded_events() {
  return recorder == nullptr ? 0 : static_cast<int64_t>(recorder->events.size());
}

// Three numbers an event: request index, bytes (-1 for a free), pointer. Ends the recording.
[[maybe_unused]] void read_recording(int64_t* out) {
  for (const Event& event : recorder->events) {
    *out++ = event.index;
    *out++ = event.bytes;
    *out++ = event.pointer;
  }
  delete recorder;
  recorder = nullptr;
}

}  // namespace
