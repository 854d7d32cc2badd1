// The trace: every step as one JSON line, enough to draw a Gantt chart of the schedule and to animate the block
// table. Flag: --trace FILE. A step's line carries only the blocks added in that step; a reader rebuilds the tables.
//
//   {"trace":"nano","version":1,"block_size":…, …}                       the first line: what the caller knows
//   {"request":"arrived","id":3,"prompt_tokens":12,"time":0.001234}       "finished" … likewise
//   {"step":7,"time":0.012345,"schedule":…,"forward":…,"sample":…,"tokens":9,"running":2,"waiting":0,
//    "free_blocks":5,"admitted":[[3,8]],"preempted":[],"events":[["freed",1,4],…],
//    "seqs":[{"id":3,"pos":8,"n":4,"new_blocks":[6],"samples":true,"discard":false,"sampled":[17],
//             "finish":"stop"}]}
//
// Times are in seconds since the start, to the microsecond; schedule, forward and sample are durations. "admitted":
// [sequence, tokens that it did not have to compute]. "error" says why a sequence finished with "error".
// Events come in the order in which they happened, since the last step's line: [kind, sequence, block].
// allocated, hit and shared put the block at the end of the sequence's table; freed takes the sequence's last block
// away; cached makes it findable; evicted (sequence -1) makes it unfindable. Replaying them gives every table.
// It does not read traces: app/trace_summary.cpp does.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/block_manager.h"  // BlockEvent
#include "core/step.h"           // StepPlan, StepResult

namespace nano {

class TraceWriter {
 public:
  // `header_json` is an object of what the caller knows (model, flags, machine, block_size).
  // Error: it is not, or the file cannot be written.
  TraceWriter(const std::string& path, const std::string& header_json);
  ~TraceWriter();  // of a trace that was not closed, what can still be written
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Call it after commit, with the block events since the last call. Error: the disk is full.
  void step(const StepPlan& plan, const StepResult& result, const std::vector<BlockEvent>& events,
            double start_seconds);
  // "arrived", "stop", "length", …
  void request(const char* event, SeqId id, int32_t prompt_tokens, double seconds);
  // Writes what is buffered. Error: it cannot be. After an error, and after this, calls write nothing: it has been
  // reported, and the requests that it interrupts still have to be taken down.
  void close();

 private:
  void write_line();
  [[noreturn]] void fail();

  std::string path_, line_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace nano
