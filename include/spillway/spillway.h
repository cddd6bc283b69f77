/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine and the optimizer for C, and for every language that calls C. What each call does is
 * said in engine.h and optimizer.h; here is how it is called.
 *
 * Errors: a call that can fail returns spw_status*, NULL for success. What it returns is the
 * caller's to free. After a failure outputs are as they were.
 * Handles are counted: spw_X_release gives one up, and an engine lives until the last of its
 * leases, streams and optimizers is given up, too, whatever the order. Releasing NULL does nothing.
 * Structs begin with their size in bytes, as the caller was compiled: spw_X_init sets it, and all
 * other members to their defaults. So a program built against this header runs with later ones.
 * spw_use and spw_values have no size, and stay as they are.
 * Strings are UTF-8 and end with a zero; char* that a call gives are freed with spw_free.
 * Threads: any call from any thread, unless it says otherwise. Nothing calls back on a thread of
 * the engine's but what spw_stream_launch was given, and `announce`; neither may call the engine.
 *
 *   spw_engine_options options;
 *   spw_engine_options_init(&options, sizeof options);
 *   const char* folders[] = {"nvme/run"};
 *   options.store = folders;
 *   options.num_store = 1;
 *   options.pinned_bytes = 1u << 30;
 *   spw_engine* engine = NULL;
 *   spw_status* status = spw_engine_open(&options, &engine);
 *   if (status != NULL) fprintf(stderr, "%s\n", spw_status_message(status));
 */

#ifndef SPILLWAY_SPILLWAY_H_
#define SPILLWAY_SPILLWAY_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPW_EXPORT __attribute__((visibility("default")))

/* --- Status --- */

typedef struct spw_status spw_status;

/* absl::StatusCode's values. */
enum {
  SPW_OK = 0,
  SPW_CANCELLED = 1,
  SPW_UNKNOWN = 2,
  SPW_INVALID_ARGUMENT = 3,
  SPW_NOT_FOUND = 5,
  SPW_ALREADY_EXISTS = 6,
  SPW_RESOURCE_EXHAUSTED = 8,
  SPW_FAILED_PRECONDITION = 9,
  SPW_ABORTED = 10,
  SPW_OUT_OF_RANGE = 11,
  SPW_UNIMPLEMENTED = 12,
  SPW_INTERNAL = 13,
  SPW_UNAVAILABLE = 14,
  SPW_DATA_LOSS = 15
};

SPW_EXPORT int spw_status_code(const spw_status* status);            /* of NULL: SPW_OK */
SPW_EXPORT const char* spw_status_message(const spw_status* status); /* as long as the status */
SPW_EXPORT void spw_status_free(spw_status* status);
SPW_EXPORT void spw_free(void* memory);

SPW_EXPORT const char* spw_version(void); /* "0.1.0" */

/* --- Words (types.h, engine.h) --- */

enum { SPW_F32 = 0, SPW_F16 = 1, SPW_BF16 = 2, SPW_U8 = 3 };               /* DType */
enum { SPW_DEVICE = 0, SPW_PINNED = 1, SPW_NVME = 2 };                     /* Tier */
enum { SPW_READ = 0, SPW_WRITE = 1, SPW_READ_WRITE = 2, SPW_DISCARD = 3 }; /* Access */
enum { SPW_CREATE = 0, SPW_OPEN_OR_CREATE = 1, SPW_SCRATCH = 2 };          /* OpenMode */
enum { SPW_AUTO = 0, SPW_URING = 1, SPW_POSIX = 2 };                       /* IoKind */
enum { SPW_HOST = 0, SPW_CUDA = 1 };                                       /* Device::Kind */
enum { SPW_KEEP = 0, SPW_IF_NONE = 1, SPW_NOW = 2 };                       /* Calibration */
enum {                                                                     /* Role */
       SPW_PARAMETER = 0,
       SPW_GRADIENT = 1,
       SPW_MASTER_WEIGHT = 2,
       SPW_MOMENT = 3,
       SPW_ACTIVATION = 4,
       SPW_NUM_ROLES = 5
};
#define SPW_UNLIMITED UINT64_MAX
#define SPW_NOWHERE (-1) /* of a placement: wherever the engine's policy has the role's tiles */

/* --- Engine --- */

typedef struct spw_engine spw_engine;
typedef struct spw_stream spw_stream;
typedef struct spw_lease spw_lease;

typedef struct {
  size_t size;
  const char* const* store; /* folders; none: everything rests in pinned memory */
  size_t num_store;
  int32_t mode;                                     /* SPW_CREATE */
  int32_t io;                                       /* SPW_AUTO */
  int32_t device_kind, device_index;                /* SPW_HOST */
  uint64_t store_bytes, device_bytes, pinned_bytes; /* SPW_UNLIMITED */
  uint64_t page_bytes;      /* 0: 1 MiB for a new store, its own for an old one */
  int32_t calibration;      /* SPW_KEEP */
  int32_t plan_steps;       /* 1 */
  int32_t queue_depth;      /* 32 */
  uint64_t timeline_events; /* 0 */
  /* Called once for each thing that the machine could not give; may be NULL. */
  void (*announce)(void* user, const char* message);
  void* announce_user;
  /* A tier for each role, or SPW_NOWHERE. Last, because there may be more roles. */
  int32_t placement[SPW_NUM_ROLES];
} spw_engine_options;

SPW_EXPORT void spw_engine_options_init(spw_engine_options* options, size_t size);
SPW_EXPORT spw_status* spw_engine_open(const spw_engine_options* options, spw_engine** engine);
SPW_EXPORT spw_engine* spw_engine_retain(spw_engine* engine); /* one more to release */
SPW_EXPORT void spw_engine_release(spw_engine* engine);

typedef struct {
  size_t size;
  const char* name;
  int32_t dtype, role;
  const int64_t* shape;
  size_t rank;
  int64_t tile_rows; /* 0: one tile */
  int32_t transient; /* not 0: never committed */
} spw_tensor_spec;

SPW_EXPORT void spw_tensor_spec_init(spw_tensor_spec* spec, size_t size);

/* Fills `out` with the tensor's bytes from `offset` on; returns 0 for success. Runs on the calling
 * thread. */
typedef int (*spw_reader)(void* user, uint64_t offset, void* out, size_t bytes);

/* `reader` may be NULL: zeros. Cancelled: it did not return 0. */
SPW_EXPORT spw_status* spw_register(spw_engine* engine, const spw_tensor_spec* spec,
                                    spw_reader reader, void* user, uint32_t* id);
SPW_EXPORT spw_status* spw_unregister(spw_engine* engine, uint32_t id);
/* By name, be it registered or only in the last commit, whatever its spec. */
SPW_EXPORT spw_status* spw_forget(spw_engine* engine, const char* name);
SPW_EXPORT spw_status* spw_find(spw_engine* engine, const char* name, uint32_t* id);
/* {"name":"w","dtype":"f32","shape":[2,3],"role":"parameter","tile_rows":0,"transient":false,
 *  "num_tiles":1,"size_bytes":24} */
SPW_EXPORT spw_status* spw_tensor_json(spw_engine* engine, uint32_t id, char** json);
/* First byte of a tile in its tensor, and its bytes. */
SPW_EXPORT spw_status* spw_tile_range(spw_engine* engine, uint32_t id, uint64_t tile,
                                      uint64_t* offset_bytes, uint64_t* size_bytes);

/* --- Leases --- */

/* `stream` may be NULL. */
SPW_EXPORT spw_status* spw_acquire(spw_engine* engine, uint32_t id, uint64_t tile, int32_t access,
                                   spw_stream* stream, spw_lease** lease);
/* In pinned memory, and the caller waits for the bytes in any case; `stream` is checked, so that
 * the lease can be released on it. */
SPW_EXPORT spw_status* spw_acquire_host(spw_engine* engine, uint32_t id, uint64_t tile,
                                        int32_t access, spw_stream* stream, spw_lease** lease);
SPW_EXPORT void* spw_lease_data(const spw_lease* lease);
SPW_EXPORT uint64_t spw_lease_size_bytes(const spw_lease* lease);
/* Ends the hold when the work launched on `stream` so far has run; NULL stream: now. */
SPW_EXPORT void spw_lease_release(spw_lease* lease, spw_stream* stream);

struct DLManagedTensor;
/* The tile as a DLPack tensor of the tensor's dtype, shaped {rows of the tile, ...}. It takes the
 * lease over: the tensor's deleter ends it, now, and may be called on any thread. A lease for
 * reading gives a tensor that must not be written; DLPack before 1.0 cannot say so. */
SPW_EXPORT spw_status* spw_lease_dlpack(spw_lease* lease, struct DLManagedTensor** tensor);

typedef struct {
  uint32_t id;
  int32_t tier, access; /* SPW_DEVICE: by spw_acquire; SPW_PINNED: by spw_acquire_host */
  uint32_t tile;
} spw_use;

SPW_EXPORT spw_status* spw_prefetch(spw_engine* engine, const spw_use* uses, size_t num_uses);
SPW_EXPORT void spw_clear_prefetch(spw_engine* engine);
SPW_EXPORT spw_status* spw_evict(spw_engine* engine, uint32_t id, uint64_t tile);
SPW_EXPORT spw_status* spw_discard(spw_engine* engine, uint32_t id, uint64_t tile);
SPW_EXPORT spw_status* spw_end_step(spw_engine* engine);
SPW_EXPORT spw_status* spw_wait_for_plan(spw_engine* engine);

/* While this thread waits for a lease, or in spw_read, spw_register, spw_commit, spw_snapshot,
 * spw_restore, spw_prefetch, spw_evict, spw_end_step or spw_wait_for_plan, `check` runs on it some
 * twenty times a second; when it returns anything but 0, the call ends with SPW_CANCELLED
 * (interrupt.h says more). `put_back` is called where the wait was over by then, so that the call
 * succeeds; it may be NULL. A `check` of NULL, as at first: nothing ends a wait. */
typedef int32_t (*spw_interrupt)(void* user);
SPW_EXPORT void spw_set_interrupt(spw_interrupt check, spw_interrupt put_back, void* user);

/* --- Whole tensors, a tile at a time in pinned memory, which holds one of them --- */

/* `offset` and `bytes` are of the tensor; writing replaces these bytes alone. */
SPW_EXPORT spw_status* spw_read(spw_engine* engine, uint32_t id, uint64_t offset, void* out,
                                uint64_t bytes);
SPW_EXPORT spw_status* spw_write(spw_engine* engine, uint32_t id, uint64_t offset,
                                 const void* bytes_in, uint64_t bytes);
/* tensor += factor * values: `values` has the tensor's elements, of `dtype`. Computed in fp32, each
 * operation rounded, and rounded to the tensor's dtype. u8 has no arithmetic (InvalidArgument). */
SPW_EXPORT spw_status* spw_add(spw_engine* engine, uint32_t id, const void* values, int32_t dtype,
                               double factor);
/* tensor *= factor, likewise. */
SPW_EXPORT spw_status* spw_scale(spw_engine* engine, uint32_t id, double factor);
/* In fp64, in an order that follows from the number of elements alone. */
SPW_EXPORT spw_status* spw_sum_of_squares(spw_engine* engine, uint32_t id, double* sum);
/* 1: no element is infinite or NaN. */
SPW_EXPORT spw_status* spw_all_finite(spw_engine* engine, uint32_t id, int32_t* all_finite);

/* --- Durability --- */

SPW_EXPORT spw_status* spw_commit(spw_engine* engine, const void* user_state, size_t bytes);
/* NULL and 0: never committed. Freed with spw_free. */
SPW_EXPORT spw_status* spw_user_state(spw_engine* engine, void** user_state, size_t* bytes);
SPW_EXPORT spw_status* spw_snapshot(spw_engine* engine, const char* label);
/* [{"label":"a","number":3,"time":"2026-01-31T12:00:00+00:00"}, ...], the oldest commit first. */
SPW_EXPORT spw_status* spw_snapshots_json(spw_engine* engine, char** json);
SPW_EXPORT spw_status* spw_restore(spw_engine* engine, const char* label);
SPW_EXPORT spw_status* spw_drop(spw_engine* engine, const char* label);
SPW_EXPORT spw_status* spw_store_id(spw_engine* engine, char** id); /* "" without a store */
SPW_EXPORT spw_status* spw_commit_number(spw_engine* engine, uint64_t* number);

/* --- What happened --- */

/* EngineStats and PlanStats by the names of their members; tiers and roles by Name's. */
SPW_EXPORT spw_status* spw_stats_json(spw_engine* engine, char** json);
/* Timeline by the names of its members; kinds, reasons and causes by words. */
SPW_EXPORT spw_status* spw_take_timeline_json(spw_engine* engine, char** json);
SPW_EXPORT uint64_t spw_page_bytes(spw_engine* engine);

/* --- Streams --- */

SPW_EXPORT spw_status* spw_stream_create(spw_engine* engine, spw_stream** stream);
/* `native` is a cudaStream_t that outlives the handle. */
SPW_EXPORT spw_status* spw_stream_wrap(spw_engine* engine, void* native, spw_stream** stream);
/* Runs work(user) on the host after all that was launched before. It must not call the engine. */
SPW_EXPORT spw_status* spw_stream_launch(spw_stream* stream, void (*work)(void* user), void* user);
SPW_EXPORT spw_status* spw_stream_synchronize(spw_stream* stream);
SPW_EXPORT void* spw_stream_native(spw_stream* stream);
SPW_EXPORT void spw_stream_release(spw_stream* stream);

/* --- Optimizer --- */

typedef struct spw_optimizer spw_optimizer;

enum { /* RuleKind */
       SPW_ADAMW = 0,
       SPW_ADAM = 1,
       SPW_SGD = 2,
       SPW_RMSPROP = 3,
       SPW_LION = 4,
       SPW_LAMB = 5,
       SPW_LARS = 6,
       SPW_ADAFACTOR = 7
};
enum { SPW_STATE_F32 = 0, SPW_STATE_BF16 = 1, SPW_STATE_8BIT = 2, SPW_STATE_COMPACT = 3 };

typedef struct {
  size_t size;
  int32_t kind;
  double beta1, beta2, epsilon, alpha, momentum, trust_coefficient, beta2_decay, epsilon2,
      clipping_threshold;
} spw_rule;

/* The constants that are usual for the kind. */
SPW_EXPORT void spw_rule_init(spw_rule* rule, size_t size, int32_t kind);
SPW_EXPORT int32_t spw_rule_exists(const spw_rule* rule, int32_t state_format); /* 1: with it */

/* Where a weight or a gradient lies: `memory`, whole and row-major, of `dtype`, until an update
 * says where it lies instead; or, where that is NULL, the engine's tensor `id`. */
typedef struct {
  void* memory;
  int32_t dtype;
  uint32_t id;
} spw_values;

typedef struct {
  size_t size;
  /* Of the parameter, and how the names of its state begin; NULL: as a weight in the engine. */
  const char* name;
  spw_values weight;
  int32_t has_gradient; /* 0: it is never updated */
  spw_values gradient;
  const int64_t* shape; /* of a weight in memory */
  size_t rank;
  int64_t tile_rows; /* of its state; 0: the weight's, and one tile of a weight in memory */
  /* Its state, as StateSpecs lists it. NULL: it is registered here, and begins with the weight's
   * values unless the last commit has it. */
  const uint32_t* state;
  size_t num_state;
  /* Not 0: what is registered, or the last commit has, under the names of its state is forgotten
   * first (spw_forget), so that the state begins anew. The caller sees to it that nobody else uses
   * it. */
  int32_t is_fresh;
} spw_parameter;

SPW_EXPORT void spw_parameter_init(spw_parameter* parameter, size_t size);

typedef struct {
  size_t size;
  size_t parameter; /* as spw_optimizer_add numbered it */
  int64_t step;     /* from 1 */
  double learning_rate, weight_decay, gradient_scale;
  const spw_rule* rule; /* NULL: the optimizer's */
  /* Where a weight or a gradient in the caller's memory lies from now on; NULL: where it lay. */
  void* weight_memory;
  void* gradient_memory;
  /* Not 0: somebody may have written a weight of 16 bits in the caller's memory since the last
   * update; where it is not what its master weight rounds to, the master weight takes its value. */
  int32_t take_changed_weight;
} spw_update;

SPW_EXPORT void spw_update_init(spw_update* update, size_t size);

/* `num_threads` update, the caller's included; 0: one for each processor. */
SPW_EXPORT spw_status* spw_optimizer_create(spw_engine* engine, const spw_rule* rule,
                                            int32_t state_format, int32_t num_threads,
                                            spw_optimizer** optimizer);
SPW_EXPORT void spw_optimizer_release(spw_optimizer* optimizer);
/* Numbers count from 0. After a failure, state that was registered for it may stay so. */
SPW_EXPORT spw_status* spw_optimizer_add(spw_optimizer* optimizer, const spw_parameter* parameter,
                                         size_t* number);
/* The names and ids of a parameter's state, as StateSpecs lists it: [{"name":"w/m","id":3}, ...].
 */
SPW_EXPORT spw_status* spw_optimizer_state_json(spw_optimizer* optimizer, size_t parameter,
                                                char** json);
/* Updates all that are listed, in their order, and declares their tiles' uses itself. Each entry
 * has the size that the first one says. Concurrent calls wait for each other. */
SPW_EXPORT spw_status* spw_optimizer_step(spw_optimizer* optimizer, const spw_update* updates,
                                          size_t num_updates);
/* What spw_optimizer_step leases for these parameters, in order; freed with spw_free. */
SPW_EXPORT spw_status* spw_optimizer_uses(spw_optimizer* optimizer, const size_t* parameters,
                                          size_t num_parameters, spw_use** uses, size_t* num_uses);
SPW_EXPORT uint64_t spw_optimizer_min_pinned_bytes(spw_optimizer* optimizer);
/* The master weights of a parameter, in fp32, whatever its state's format: `num_elements` of them,
 * row-major, to `masters`. */
SPW_EXPORT spw_status* spw_optimizer_masters(spw_optimizer* optimizer, size_t parameter,
                                             float* masters, uint64_t num_elements);

/* What a parameter's state holds, in fp32 and row-major, whatever its format. */
typedef struct {
  size_t size;
  size_t parameter;
  /* Where a weight in the caller's memory lies, for this call; NULL: where it lay. */
  void* weight_memory;
  /* `num_elements` of each. NULL, or none: not read, or left as they are. Moments are in the order
   * of StateSpecs, all that the rule has. */
  float* masters;
  float* const* moments;
  size_t num_moments;
  uint64_t num_elements;
} spw_state;

SPW_EXPORT void spw_state_init(spw_state* state, size_t size);
SPW_EXPORT spw_status* spw_optimizer_read_state(spw_optimizer* optimizer, const spw_state* state);
/* Rounds to the format, at random where updates do. The weight stays as it is, but under
 * SPW_STATE_COMPACT, where it is most of its master weight. SPW_INVALID_ARGUMENT of both: the rule
 * is Adafactor, whose tensors are as they are (spw_read). */
SPW_EXPORT spw_status* spw_optimizer_write_state(spw_optimizer* optimizer, const spw_state* state);

#ifdef __cplusplus
}
#endif

#endif /* SPILLWAY_SPILLWAY_H_ */
