// SPDX-License-Identifier: Apache-2.0
//
// Decides which request goes to the kernel next. Pure bookkeeping: the engines report the requests
// that arrive and end; the queue opens no file and reads no clock.
//
// The equation. A device works on all requests that it was given, so a read that arrives waits for
// those in flight there:
//
//   delay = reads in flight x bytes / read rate + writes in flight x bytes / write rate.
//
// A write that was issued cannot be recalled, but further writes can be held back while there are
// reads. So for each device, with r reads and w writes in flight:
//
//   a read goes if   r < read
//   a write goes if  w < write, and, while any read waits or is in flight there, w < mixed_write
//
// Depths are measured with requests of one size, request_bytes. What keeps a device busy, and what
// a read waits for, are bytes rather than requests. So r and w are bytes in flight divided by
// request_bytes: twice as many requests of half that size go. A request counts as a half at least,
// because a device also takes time for each request, and the requests of all devices have a limit.
//
// A queue that was full issues no more requests until a quarter of it has ended. Requests that are
// issued one at a time cost one doorbell each (on a virtual disk an exit of the virtual machine,
// about 20 us), and three quarters of a queue keep the device just as busy.
//
// Reads go before writes, and each kind goes in the order of arrival. Once the writes that were in
// flight when a read arrived have ended, the read shares the device with at most mixed_write
// writes, however much write-back waits.

#ifndef SPILLWAY_IO_REQUEST_QUEUE_H_
#define SPILLWAY_IO_REQUEST_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "io/io_engine.h"
#include "io/transfer.h"

namespace spillway::io {

// Returns the depths, each clamped to a range of 1 to `most`.
QueueDepths ClampDepths(const QueueDepths& depths, int most);

// Thread-compatible.
class RequestQueue {
 public:
  // `depths` are the depths of every device until SetDepths. `max_in_flight` limits all devices
  // together. Writes take at most half of it, and reads at most three quarters, both rounded up, so
  // that neither keeps out the other.
  RequestQueue(const QueueDepths& depths, int max_in_flight);

  void SetDepths(uint16_t device, const QueueDepths& depths);

  void Add(const Transfer& transfer);
  // Returns the next request to issue, which counts as in flight until Ended. Returns nullopt if no
  // request may be issued now.
  std::optional<Transfer> Take();
  // Records that a request returned by Take is no longer in flight.
  void Ended(const Transfer& transfer);
  // Removes and returns all waiting requests; the queue will not issue them.
  std::vector<Transfer> TakeWaiting();

  size_t num_waiting() const { return num_waiting_; }
  int in_flight() const { return num_in_flight_[0] + num_in_flight_[1]; }

 private:
  struct Device {
    QueueDepths depths;
    std::deque<Transfer> waiting[2];  // by IoOp
    int in_flight[2] = {0, 0};
    uint64_t in_flight_bytes[2] = {0, 0};
    bool was_full[2] = {false, false};  // and a quarter of it has not ended since
  };

  Device& MakeDevice(uint16_t device);
  bool MayGo(Device& device, IoOp op) const;
  static bool HasPlace(Device& device, IoOp op, int depth);
  bool HasSlot(IoOp op) const;

  const QueueDepths default_depths_;
  const int max_in_flight_;
  std::vector<Device> devices_;
  size_t turn_ = 0;  // index of the device that Take tries first
  size_t num_waiting_ = 0;
  int num_in_flight_[2] = {0, 0};  // by IoOp
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_REQUEST_QUEUE_H_
