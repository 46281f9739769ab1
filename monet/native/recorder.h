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

}  // namespace
