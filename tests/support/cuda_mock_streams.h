// Streams and events of a GPU that is not there.
//
// Streams keep vector clocks: work on one stream comes after work on another one only where an event says so.
// `mock_use` says that a block is read or written by a stream, and counts the races: earlier work on the same bytes,
// under another block, that nothing orders before it.
#pragma once

#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "cuda_arena.h"

namespace {

using Clock = std::map<int64_t, int64_t>;  // stream → how much of its work

struct Access {
  const char* begin;
  const char* end;
  int64_t stream;
  int64_t time;
  int64_t block;
};

struct Machine {
  int device = 0;
  std::map<int, int64_t> current;          // device → its current stream
  std::map<int64_t, Clock> clocks;
  std::map<int64_t, Clock> events;
  std::set<int64_t> busy, capturing;       // streams
  std::vector<Access> accesses;
  int64_t last_event = 0, last_block = 0;
  int stream_device(int64_t stream) { return static_cast<int>(stream / 100); }
} machine;

std::ostringstream journal;

// As CUDA has it, the default stream of the current device is nullptr.
cudaStream_t handle_of(int64_t stream) {
  return stream % 100 == 0 ? nullptr : reinterpret_cast<cudaStream_t>(stream);
}
int64_t number_of(cudaStream_t stream) {
  return stream == nullptr ? machine.device * 100 : reinterpret_cast<int64_t>(stream);
}

CUDAStream stream_of(int64_t number) {
  const c10::Device device(c10::DeviceType::CUDA, static_cast<DeviceIndex>(machine.stream_device(number)));
  return CUDAStream(CUDAStream::UNCHECKED, c10::Stream(c10::Stream::UNSAFE, device, number));
}

void merge(Clock& into, const Clock& from) {
  for (const auto& [stream, time] : from) into[stream] = std::max(into[stream], time);
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the mock"; }
cudaError_t cudaMemGetInfo(size_t*, size_t*) { return cudaErrorUnknown; }
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return machine.busy.count(number_of(stream)) ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const bool active = machine.capturing.count(number_of(stream)) != 0;
  *status = active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static cudaStreamCaptureMode now = cudaStreamCaptureModeGlobal;
  std::swap(now, *mode);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(++machine.last_event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (machine.stream_device(number_of(stream)) != machine.device) return cudaErrorInvalidValue;
  machine.events[reinterpret_cast<int64_t>(event)] = machine.clocks[number_of(stream)];
  journal << "event on " << number_of(stream) << "\n";
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  merge(machine.clocks[number_of(stream)], machine.events.at(reinterpret_cast<int64_t>(event)));
  journal << "wait on " << number_of(stream) << "\n";
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  machine.events.erase(reinterpret_cast<int64_t>(event));
  return cudaSuccess;
}

}  // extern "C"
