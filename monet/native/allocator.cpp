// A c10 CPU allocator that serves planned requests from an arena, records what an operator asks
// for, and counts live bytes. Everything it does not plan goes to the allocator that was there before.
//
// Outside a planned step a thread has no Session, so data-loader workers and eager code are served
// by PyTorch's own allocator. A kernel may also ask on the other threads of its parallel loop: each of
// these serves itself, as a stack, from a slice of one region that the step has for them. Each block
// that is not planned carries a 64-byte header with its size, because a
// deleter only gets a pointer, and raw_allocate demands that pointer and context be the same.
//
// program.h says which planned request one is, arena.h has what is served, move.h what outlives a step, guided.h steps
// without a graph, recorder.h what is recorded, workers.h the other threads; here are the allocator that asks all of
// them, and the functions that Python calls. It is one library, built from this file.
//
//   base               base + 64 (what PyTorch sees, 64-byte aligned)
//   | Header .......... | n bytes ............... |
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <atomic>
#include <cstdint>
#include <mutex>

#include "arena.h"
#include "guided.h"
#include "move.h"
#include "recorder.h"
#include "workers.h"

namespace {

constexpr size_t kHeader = 64;

struct Header {
  Crew* crew;          // whose worker asked while recording, or nullptr
  uint64_t size;
  uint64_t recording;  // number of the recording that saw the request, 0 for none
  int64_t index;       // number of the request in that recording
  uint64_t step;       // number of the guided step that it is of, 0 for none
  int64_t entry;       // and its number there
};
static_assert(sizeof(Header) <= kHeader);

c10::Allocator* previous = nullptr;

void release(void* pointer) {
  if (pointer == nullptr) return;
  if (!worker.blocks.empty()) worker.release(pointer);
  if (Range* range = range_of(pointer)) {
    const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer) - range->begin.load());
    if (range->guided) vacate(*range, pointer);
    take_back(*range, offset);
    if (session.program != nullptr && session.program->home->range == range)
      session.freed(*session.program, offset);
    if (range->blocks.fetch_sub(1) == 1) unmap_orphan(*range);
    return;
  }
  char* base = static_cast<char*>(pointer) - kHeader;
  auto* header = reinterpret_cast<Header*>(base);
  if (header->crew != nullptr) header->crew->alive.fetch_sub(1);
  if (recorder != nullptr && header->recording == recorder->number)
    recorder->events.push_back({header->index, -1, 0});
  if (header->step != 0) note_freed(header->step, header->entry);
  count(-static_cast<int64_t>(header->size));
  previous->raw_deallocate(base);
}

void refuse_above_limit(const Guide& one, int64_t entry, size_t n) {
  const int64_t held = live_bytes.load(), bytes = static_cast<int64_t>(n);
  TORCH_CHECK_WITH(OutOfMemoryError, one.limit == 0 || held + bytes <= one.limit, "request ", entry,
                   " of the step, for ", bytes, " bytes, is ", held + bytes - one.limit, " bytes above the limit of ",
                   one.limit, ": torch holds ", held, " already. Raise profile_guided(limit=...), or take a smaller "
                   "batch");
}

class PlannedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    if (session.program != nullptr) {
      Program& program = *session.program;
      const int64_t request = next_request(program, session, n);
      if (request >= 0 && program.offsets[request] >= 0) {
        const int64_t offset = program.offsets[request];
        ++program.served;
        Home& home = *program.home;
        home.range->blocks.fetch_add(1);
        char* at = home.base + offset;
        if (program.leaves[request] != 0) lend(*home.range, offset, static_cast<int64_t>(n));
        return {at, at, &release, c10::Device(c10::DeviceType::CPU)};
      }
    }
    if (works_for(Crew::kServing)) {
      if (worker.slice != nullptr && worker.top + n <= worker.crew->slice_bytes) {
        char* at = worker.slice + worker.top;
        worker.push(at, n);
        worker.crew->range->blocks.fetch_add(1);
        return {at, at, &release, c10::Device(c10::DeviceType::CPU)};
      }
      worker.crew->misses.fetch_add(1);
    }
    int64_t entry = -1;
    // A planned step inside a guided one has its own arena, and what is measured shall be PyTorch's.
    const bool plain = session.program == nullptr && recorder == nullptr;
    Guide* guided = plain && guide != nullptr && guide->step != 0 ? guide : nullptr;
    if (guided != nullptr) {
      if (char* at = serve(*guided, static_cast<int64_t>(n), &entry))
        return {at, at, &release, c10::Device(c10::DeviceType::CPU)};
      refuse_above_limit(*guided, entry, n);
    }
    char* base = static_cast<char*>(previous->raw_allocate(n + kHeader));
    auto* header = reinterpret_cast<Header*>(base);
    header->size = n;
    header->recording = 0;
    header->step = guided == nullptr || entry < 0 ? 0 : guided->step;
    header->entry = entry;
    header->crew = nullptr;
    char* at = base + kHeader;
    if (works_for(Crew::kRecording)) {
      header->crew = worker.crew;
      worker.crew->alive.fetch_add(1);
      worker.push(at, n);
      raise(worker.crew->most, static_cast<int64_t>(worker.top));
    }
    if (recorder != nullptr) {
      header->recording = recorder->number;
      header->index = recorder->requests++;
      recorder->events.push_back({header->index, static_cast<int64_t>(n), reinterpret_cast<int64_t>(at)});
    }
    count(static_cast<int64_t>(n));
    if (guided != nullptr) raise(guided->most, live_bytes.load());
    return {at, at, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, std::size_t n) const override { default_copy_data(dest, src, n); }
};

// After it, workers are served by PyTorch's own allocator again.
void end_turn(Program* program) {
  if (own_crew == nullptr || own_crew->mode != Crew::kServing) return;
  own_crew->mode = Crew::kFree;
  if (program != nullptr) program->misses += own_crew->misses.exchange(0);
}

}  // namespace

extern "C" {

int monet_install() {
  static PlannedAllocator allocator;
  if (previous != nullptr) return 0;
  previous = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&allocator, 255);
  return c10::GetCPUAllocator() == &allocator ? 0 : 1;
}

int64_t monet_live_bytes() { return live_bytes.load(); }
int64_t monet_peak_bytes() { return peak_bytes.load(); }
void monet_reset_peak() { peak_bytes.store(live_bytes.load()); }

// leaves: 1 for a request whose block outlives the step. crew: how many other threads a parallel loop has. crew_offset,
// crew_bytes: their region in each step.
Program* monet_program_create(int64_t steps, const int64_t* step_begin, const int64_t* sizes, const int64_t* offsets,
                              const int64_t* leaves, int64_t arena_bytes, int crew, const int64_t* crew_offset,
                              const int64_t* crew_bytes) {
  auto* program = new Program(steps, step_begin, sizes, offsets, leaves);
  program->arena_bytes = arena_bytes;
  program->crew = crew;
  program->crew_offset.assign(crew_offset, crew_offset + steps);
  program->crew_bytes.assign(crew_bytes, crew_bytes + steps);
  return program;
}

// Between two steps: other sizes of the same requests. upper: 1 for a request that may be for less than its size.
void monet_program_resize(Program* program, const int64_t* sizes, const int64_t* upper) {
  const size_t count = program->sizes.size();
  program->sizes.assign(sizes, sizes + count);
  program->upper.assign(upper, upper + count);
}

// Reserves the arena; pages become resident when first written. Returns 0, or 1 when memory is refused.
int monet_arena_map(Program* program) {
  Home& home = *program->home;
  if (home.base != nullptr || program->arena_bytes == 0) return 0;
  home.range = reserve_range(program->arena_bytes);
  if (home.range == nullptr) return 1;
  home.base = reinterpret_cast<char*>(home.range->begin.load());
  program->owner = true;
  count(program->arena_bytes);
  return 0;
}

// Before a step: the arena is there, and nothing that an earlier step made is held inside. Returns the bytes that it
// moved away from, or -1 when memory is refused.
int64_t monet_arena_ready(Program* program) {
  if (monet_arena_map(program) != 0) return -1;
  return program->home->range == nullptr ? 0 : move_away(*program->home);
}

void monet_arena_unmap(Program* program) {
  if (!program->owner) return;
  program->owner = false;
  Range& range = *program->home->range;
  *program->home = Home{};
  orphan(range);
}

// Serves from another program's arena, which must be at least as large and live longer.
void monet_arena_share(Program* program, const Program* owner) {
  program->home = owner->home;
}

int64_t monet_arena_base(const Program* program) { return reinterpret_cast<int64_t>(program->home->base); }

void monet_program_destroy(Program* program) {
  monet_arena_unmap(program);
  delete program;
}

void monet_enter(Program* program, int64_t step) {
  session.program = program;
  session.enter(*program, step);
  if (own_crew == nullptr) return;  // nobody joined it
  end_turn(program);
  own_crew->mode = Crew::kServing;
  ++own_crew->turn;
  own_crew->range = program->home->range;
  own_crew->slices = program->home->base + program->crew_offset[step];
  own_crew->slice_bytes = static_cast<size_t>(program->crew_bytes[step] / program->crew);
  own_crew->slice_count = program->crew_bytes[step] > 0 ? program->crew : 0;
  own_crew->slices_taken = 0;
}

void monet_leave() {
  end_turn(session.program);
  session.program = nullptr;
}

// Between these two PyTorch's own allocator serves what the calling thread asks for, in the middle of a step.
void monet_pause() {
  end_turn(session.program);
  paused = {session.program, live_bytes.load(), peak_bytes.load()};
  session.program = nullptr;
  peak_bytes.store(paused.live_bytes);
}

// The most bytes that were held meanwhile, beyond what was held at the pause. The peak is what it would be without it.
int64_t monet_resume() {
  session.program = paused.program;
  const int64_t most = peak_bytes.load() - paused.live_bytes;
  raise(peak_bytes, paused.peak_bytes);
  return most;
}

// Makes the calling thread a worker of `leader`'s crew; a thread belongs to one pool, and so to one crew.
void monet_join_crew(void* leader) {
  if (worker.crew == leader) return;
  worker.crew = static_cast<Crew*>(leader);
  worker.turn = 0;  // a crew's first is 1
}

// The calling thread's crew, to be joined by the threads of its parallel loops.
void* monet_crew() { return &crew_of_this_thread(); }

// Takes a stretch of memory out of all caches, as where an operator finds what was made long before. Does nothing on a
// processor that is neither of these; `signature.py` names them, too.
void monet_evict(int64_t address, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const int64_t end = address + bytes;
  for (int64_t line = address & ~(kLine - 1); line < end; line += kLine) {
#if defined(__CLFLUSHOPT__)
    _mm_clflushopt(reinterpret_cast<void*>(line));
#elif defined(__x86_64__)
    _mm_clflush(reinterpret_cast<void*>(line));
#elif defined(__aarch64__)
    asm volatile("dc civac, %0" ::"r"(line) : "memory");
#endif
  }
#if defined(__x86_64__)
  _mm_sfence();
#elif defined(__aarch64__)
  asm volatile("dsb ish" ::: "memory");
#endif
}

// misses, served, then step, request number, bytes asked and planned of the first miss.
void monet_statistics(const Program* program, int64_t* out) {
  read_statistics(*program, out);
}

void monet_record_begin() {
  begin_recording();
  Crew& crew = crew_of_this_thread();
  crew.mode = Crew::kRecording;
  ++crew.turn;
  crew.most = 0;
  crew.alive = 0;
}

Guide* monet_guide_create(int64_t limit) { return make_guide(limit); }

void monet_guide_destroy(Guide* one) { destroy_guide(one); }

GuidedPlan* monet_guide_plan(int64_t requests, const int64_t* sizes, const int64_t* offsets) {
  return new GuidedPlan{{sizes, sizes + requests}, {offsets, offsets + requests}};
}

void monet_guide_plan_destroy(GuidedPlan* plan) { delete plan; }

int monet_guide_room(Guide* one, int64_t bytes) { return make_guided_room(*one, bytes); }

void monet_guide_begin(Guide* one, const GuidedPlan* plan) { begin_step(*one, plan); }

void monet_guide_end(Guide* one) { end_step(*one); }

// Returns whose the calling thread's requests were.
Guide* monet_guide_bind(Guide* one) { return bind_guide(one); }

// requests, served, moved, unplaced, missed of the last step; the most that torch held when a step requested something.
void monet_guide_statistics(const Guide* one, int64_t* out) {
  out[0] = static_cast<int64_t>(one->trace.size());
  out[1] = one->served;
  out[2] = one->moved;
  out[3] = one->unplaced;
  out[4] = one->missed;
  out[5] = one->most.load();
}

// What lies in the arena: how many blocks, and, unless `out` is nullptr, offset and bytes of each of the first `most`.
int64_t monet_guide_held(const Guide* one, int64_t most, int64_t* out) {
  std::lock_guard<std::mutex> lock(guided_mutex);
  if (one->home.range == nullptr) return 0;
  const auto& places = one->home.range->places;
  for (auto at = places.begin(); out != nullptr && at != places.end() && most > 0; ++at, --most) {
    *out++ = at->first;
    *out++ = at->second.end - at->first;
  }
  return static_cast<int64_t>(places.size());
}

// Bytes, birth and death of each request of the last step.
void monet_guide_trace(const Guide* one, int64_t* out) {
  for (const Request& request : one->trace) {
    *out++ = request.bytes;
    *out++ = request.born;
    *out++ = request.died;
  }
}

// Number of events. crew[0]: the most bytes that a worker held at once; crew[1]: blocks of workers that are still held.
int64_t monet_record_end(int64_t* crew) {
  Crew& own = crew_of_this_thread();
  own.mode = Crew::kFree;
  crew[0] = own.most.load();
  crew[1] = own.alive.load();
  return recorded_events();
}

void monet_record_read(int64_t* out) { read_recording(out); }

}  // extern "C"
