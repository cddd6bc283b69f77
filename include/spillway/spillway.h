/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine and the optimizer for C, and for every language that can call C. engine.h and
 * optimizer.h describe what each call does; this header describes how it is called.
 *
 * Errors: a call that can fail returns spw_status*, which is NULL for success. The caller frees it
 * with spw_status_free. After a failure the outputs are unchanged, except that an array for tensor
 * values or bytes may be filled in part.
 * Handles: spw_X_release releases a handle. An engine lives until all of its handles, leases,
 * streams and optimizers are released, in any order. Releasing NULL does nothing.
 * Structs begin with their size in bytes, as the caller's compiler computed it. spw_X_init sets it,
 * and sets all other members to their defaults. So a program that was built with this header runs
 * with later versions of the library. spw_confirmed_reader, spw_use and spw_values have no size and
 * will not change.
 * Strings are UTF-8 and end with a zero. A char* that a call outputs is freed with spw_free.
 * Threads: any call may be made from any thread, unless its comment says otherwise. Only the
 * function given to spw_stream_launch, and `announce`, may run on a thread of the engine; neither
 * may call the engine.
 * Forks: in a process that was forked from the one that opened the engine, calls that return a
 * status fail with SPW_FAILED_PRECONDITION. An address that spw_lease_data returns there must not
 * be used: an access may end the process.
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

/* The values of absl::StatusCode. */
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

SPW_EXPORT int spw_status_code(const spw_status* status);            /* SPW_OK for NULL */
SPW_EXPORT const char* spw_status_message(const spw_status* status); /* as long as the status */
SPW_EXPORT void spw_status_free(spw_status* status);
SPW_EXPORT void spw_free(void* memory);

SPW_EXPORT const char* spw_version(void); /* "0.1.0" */

/* --- Enumerations (types.h, engine.h) --- */

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
#define SPW_NOWHERE (-1) /* in a placement: the engine's policy decides where the tiles are */

/* --- Engine --- */

typedef struct spw_engine spw_engine;
typedef struct spw_stream spw_stream;
typedef struct spw_lease spw_lease;

typedef struct {
  size_t size;
  const char* const* store; /* folders; if none, all rests in pinned memory */
  size_t num_store;
  int32_t mode;                                     /* SPW_CREATE */
  int32_t io;                                       /* SPW_AUTO */
  int32_t device_kind, device_index;                /* SPW_HOST */
  uint64_t store_bytes, device_bytes, pinned_bytes; /* SPW_UNLIMITED */
  uint64_t page_bytes;      /* 0: 1 MiB for a new store, the store's own for another */
  int32_t calibration;      /* SPW_KEEP */
  int32_t plan_steps;       /* 1 */
  int32_t queue_depth;      /* 32 */
  uint64_t timeline_events; /* 0 */
  /* Called once for each thing that the machine could not provide; may be NULL. */
  void (*announce)(void* user, const char* message);
  void* announce_user;
  /* A tier for each role, or SPW_NOWHERE. The last member, because roles may be added. */
  int32_t placement[SPW_NUM_ROLES];
} spw_engine_options;

SPW_EXPORT void spw_engine_options_init(spw_engine_options* options, size_t size);
SPW_EXPORT spw_status* spw_engine_open(const spw_engine_options* options, spw_engine** engine);
SPW_EXPORT spw_engine* spw_engine_retain(spw_engine* engine); /* one more handle to release */
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

/* Fills `out` with the tensor's bytes from `offset` on. Returns 0 for success. Runs on the thread
 * that calls spw_register. */
typedef int (*spw_reader)(void* user, uint64_t offset, void* out, size_t bytes);

/* A reader for languages in which a function may end before it has a result, as a ctypes callback
 * in Python does if an exception is raised before its first statement. `read` sets `is_done` of
 * this struct, which it can reach through `user`, to 1 when `out` is filled; what it returns is
 * ignored. Call spw_register with spw_read_confirmed as the reader and the address of this struct
 * as `user`. */
typedef struct {
  spw_reader read;
  void* user;
  int32_t is_done; /* spw_read_confirmed sets it to 0 before it calls `read` */
} spw_confirmed_reader;

/* Returns 0 if `read` has set `is_done`, else 1. `confirmed_reader` is a spw_confirmed_reader*. */
SPW_EXPORT int spw_read_confirmed(void* confirmed_reader, uint64_t offset, void* out, size_t bytes);

/* If `reader` is NULL, the tensor starts as zeros. SPW_CANCELLED: the reader did not return 0. */
SPW_EXPORT spw_status* spw_register(spw_engine* engine, const spw_tensor_spec* spec,
                                    spw_reader reader, void* user, uint32_t* id);
SPW_EXPORT spw_status* spw_unregister(spw_engine* engine, uint32_t id);
/* Removes a tensor by its name, whatever its spec is. The tensor may be registered, or only in the
 * last commit. */
SPW_EXPORT spw_status* spw_forget(spw_engine* engine, const char* name);
SPW_EXPORT spw_status* spw_find(spw_engine* engine, const char* name, uint32_t* id);
/* {"name":"w","dtype":"f32","shape":[2,3],"role":"parameter","tile_rows":0,"transient":false,
 *  "num_tiles":1,"size_bytes":24} */
SPW_EXPORT spw_status* spw_tensor_json(spw_engine* engine, uint32_t id, char** json);
/* Returns where a tile begins in its tensor, and the tile's size. Either output may be NULL. */
SPW_EXPORT spw_status* spw_tile_range(spw_engine* engine, uint32_t id, uint64_t tile,
                                      uint64_t* offset_bytes, uint64_t* size_bytes);

/* --- Leases --- */

/* `stream` may be NULL. The lease keeps its stream alive. */
SPW_EXPORT spw_status* spw_acquire(spw_engine* engine, uint32_t id, uint64_t tile, int32_t access,
                                   spw_stream* stream, spw_lease** lease);
/* Leases the tile in pinned memory. The caller waits for the bytes even if there is a stream, on
 * which the lease will end. `stream` may be NULL. */
SPW_EXPORT spw_status* spw_acquire_host(spw_engine* engine, uint32_t id, uint64_t tile,
                                        int32_t access, spw_stream* stream, spw_lease** lease);
SPW_EXPORT void* spw_lease_data(const spw_lease* lease);
SPW_EXPORT uint64_t spw_lease_size_bytes(const spw_lease* lease);
/* Ends the lease when the work that was launched on `stream` so far has run. NULL: the stream that
 * the lease was acquired with; if there was none, the lease ends at once. */
SPW_EXPORT void spw_lease_release(spw_lease* lease, spw_stream* stream);

struct DLManagedTensor;
/* Returns the tile as a DLPack tensor of the tensor's dtype, shaped {rows of the tile, ...}. If the
 * lease was acquired with a stream, waits until all work launched there so far has run, so that the
 * bytes are there and can be read on any stream. The DLPack tensor takes over the lease, unless the
 * call fails: its deleter ends the lease as spw_lease_release(lease, NULL) does, and may be called
 * on any thread but one that runs a host function of CUDA's. If the lease is for reading, the
 * DLPack tensor must not be written; DLPack before 1.0 cannot express that. */
SPW_EXPORT spw_status* spw_lease_dlpack(spw_lease* lease, struct DLManagedTensor** tensor);
/* Like spw_lease_dlpack, for a consumer that uses the bytes on `stream`: the deleter ends the lease
 * when the work that was launched on `stream` so far has run, and the call does not wait if the
 * lease was acquired with `stream`. The DLPack tensor keeps `stream` alive. NULL: as
 * spw_lease_dlpack. */
SPW_EXPORT spw_status* spw_lease_dlpack_on(spw_lease* lease, spw_stream* stream,
                                           struct DLManagedTensor** tensor);

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

/* While this thread measures drives in spw_engine_open, or waits in spw_acquire, spw_acquire_host,
 * spw_read, spw_register, spw_commit, spw_snapshot, spw_restore, spw_prefetch, spw_evict,
 * spw_end_step or spw_wait_for_plan, `check` runs on it about twenty times a second. If `check`
 * does not return 0, the call ends with SPW_CANCELLED; interrupt.h has the details. If the wait was
 * over by then, the call continues and `put_back` is called; it may be NULL. If `check` is NULL, as
 * it is at first, nothing ends a wait. Other calls are never ended. */
typedef int32_t (*spw_interrupt)(void* user);
SPW_EXPORT void spw_set_interrupt(spw_interrupt check, spw_interrupt put_back, void* user);

/* --- Whole tensors, processed one tile at a time in pinned memory --- */

/* `offset` and `bytes` are a range of the tensor's bytes. Writing replaces only these bytes.
 * SPW_OUT_OF_RANGE: the range goes past the tensor's end. */
SPW_EXPORT spw_status* spw_read(spw_engine* engine, uint32_t id, uint64_t offset, void* out,
                                uint64_t bytes);
SPW_EXPORT spw_status* spw_write(spw_engine* engine, uint32_t id, uint64_t offset,
                                 const void* bytes_in, uint64_t bytes);
/* tensor += factor * values. `values` has as many elements as the tensor, of `dtype`. Computes in
 * fp32, rounds each operation, and rounds the result to the tensor's dtype. u8 has no arithmetic
 * (SPW_INVALID_ARGUMENT). */
SPW_EXPORT spw_status* spw_add(spw_engine* engine, uint32_t id, const void* values, int32_t dtype,
                               double factor);
/* tensor *= factor, computed and rounded like spw_add. */
SPW_EXPORT spw_status* spw_scale(spw_engine* engine, uint32_t id, double factor);
/* Computes in fp64, in an order that depends on the number of elements alone. */
SPW_EXPORT spw_status* spw_sum_of_squares(spw_engine* engine, uint32_t id, double* sum);
/* Outputs 1 if no element is infinite or NaN, else 0. */
SPW_EXPORT spw_status* spw_all_finite(spw_engine* engine, uint32_t id, int32_t* all_finite);

/* --- Durability --- */

SPW_EXPORT spw_status* spw_commit(spw_engine* engine, const void* user_state, size_t bytes);
/* Outputs NULL and 0 if the store was never committed. The state is freed with spw_free. */
SPW_EXPORT spw_status* spw_user_state(spw_engine* engine, void** user_state, size_t* bytes);
SPW_EXPORT spw_status* spw_snapshot(spw_engine* engine, const char* label);
/* [{"label":"a","number":3,"time":"2026-01-31T12:00:00+00:00"}, ...], the oldest commit first. */
SPW_EXPORT spw_status* spw_snapshots_json(spw_engine* engine, char** json);
/* The user state of a snapshot's commit, freed with spw_free. */
SPW_EXPORT spw_status* spw_snapshot_user_state(spw_engine* engine, const char* label,
                                               void** user_state, size_t* bytes);
SPW_EXPORT spw_status* spw_restore(spw_engine* engine, const char* label);
SPW_EXPORT spw_status* spw_drop(spw_engine* engine, const char* label);
SPW_EXPORT spw_status* spw_store_id(spw_engine* engine, char** id); /* "" without a store */
SPW_EXPORT spw_status* spw_commit_number(spw_engine* engine, uint64_t* number);

/* --- A store without an engine --- */

/* Opens a store only to read its snapshots, also beside the process that has it; store_reader.h has
 * the details. `store` has all its folders, in its order. */
typedef struct spw_store_reader spw_store_reader;
SPW_EXPORT spw_status* spw_store_reader_open(const char* const* store, size_t num_store,
                                             spw_store_reader** reader);
SPW_EXPORT void spw_store_reader_release(spw_store_reader* reader);
SPW_EXPORT spw_status* spw_store_reader_id(spw_store_reader* reader, char** id);
SPW_EXPORT spw_status* spw_store_reader_user_state(spw_store_reader* reader, const char* label,
                                                   void** user_state, size_t* bytes);
/* Outputs all `bytes` bytes that a tensor has in a snapshot. */
SPW_EXPORT spw_status* spw_store_reader_read(spw_store_reader* reader, const char* label,
                                             const spw_tensor_spec* spec, void* out,
                                             uint64_t bytes);

/* --- Statistics and timeline --- */

/* EngineStats and PlanStats: keys are the names of their members. Tiers and roles have the names
 * that Name returns. */
SPW_EXPORT spw_status* spw_stats_json(spw_engine* engine, char** json);
/* Timeline: keys are the names of its members. Kinds, reasons and causes are words. */
SPW_EXPORT spw_status* spw_take_timeline_json(spw_engine* engine, char** json);
SPW_EXPORT uint64_t spw_page_bytes(spw_engine* engine);

/* --- Streams --- */

SPW_EXPORT spw_status* spw_stream_create(spw_engine* engine, spw_stream** stream);
/* `native` is a cudaStream_t, which must outlive the handle, and the leases and DLPack tensors
 * that end on it. SPW_INVALID_ARGUMENT for cudaStreamPerThread. No lease may be acquired or end on
 * it while it is captured into a CUDA graph. */
SPW_EXPORT spw_status* spw_stream_wrap(spw_engine* engine, void* native, spw_stream** stream);
/* Runs work(user) on the host after everything that was launched before. It must not call the
 * engine. */
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
      clipping_threshold, dampening;
  int32_t nesterov, centered, amsgrad, maximize; /* not 0: yes */
} spw_rule;

/* Sets the usual constants of the kind. */
SPW_EXPORT void spw_rule_init(spw_rule* rule, size_t size, int32_t kind);
SPW_EXPORT int32_t spw_rule_exists(const spw_rule* rule, int32_t state_format); /* 1: it exists */

/* Where a weight or a gradient lies. If `memory` is not NULL: there, whole and row-major, of
 * `dtype`, until an update gives another address. If it is NULL: in the engine's tensor `id`. */
typedef struct {
  void* memory;
  int32_t dtype;
  uint32_t id;
} spw_values;

typedef struct {
  size_t size;
  /* The name of the parameter, with which the names of its state begin. NULL: the name of the
   * weight's tensor; not allowed for a weight in memory. */
  const char* name;
  spw_values weight;
  int32_t has_gradient; /* 0: the parameter is never updated */
  spw_values gradient;
  const int64_t* shape; /* of a weight in memory */
  size_t rank;
  /* Rows of a tile of its state. 0: as in the weight; one tile if the weight is in memory. */
  int64_t tile_rows;
  /* The tensors of its state, as StateSpecs lists them. NULL: spw_optimizer_add registers them.
   * They start with the values of FirstValues, unless they are registered already or the last
   * commit has them. */
  const uint32_t* state;
  size_t num_state;
  /* Not 0: tensors that are registered, or that the last commit has, under the names of its state
   * are removed first (spw_forget), so that the state starts anew. The caller must ensure that
   * nothing else uses them. */
  int32_t is_fresh;
  /* The rule whose state it has, of the optimizer's kind; NULL: the optimizer's. */
  const spw_rule* rule;
} spw_parameter;

SPW_EXPORT void spw_parameter_init(spw_parameter* parameter, size_t size);

typedef struct {
  size_t size;
  size_t parameter; /* the number that spw_optimizer_add returned */
  int64_t step;     /* from 1 */
  double learning_rate, weight_decay, gradient_scale;
  const spw_rule* rule; /* NULL: the parameter's rule */
  /* The new address of a weight or a gradient in the caller's memory, from now on; NULL:
   * unchanged. It holds after a step that failed, too, unless the step was refused because of a
   * value in the list. */
  void* weight_memory;
  void* gradient_memory;
  /* Not 0: the caller may have written a 16-bit weight in its own memory since the last update.
   * Each element that differs from its rounded master weight becomes the master weight's new
   * value. */
  int32_t take_changed_weight;
} spw_update;

SPW_EXPORT void spw_update_init(spw_update* update, size_t size);

/* `num_threads` threads update, the caller included; 0: one for each processor. At most 1024. */
SPW_EXPORT spw_status* spw_optimizer_create(spw_engine* engine, const spw_rule* rule,
                                            int32_t state_format, int32_t num_threads,
                                            spw_optimizer** optimizer);
SPW_EXPORT void spw_optimizer_release(spw_optimizer* optimizer);
/* Numbers count from 0. A parameter is refused before its state is removed or registered. After
 * another failure, state tensors that the call registered may stay registered. */
SPW_EXPORT spw_status* spw_optimizer_add(spw_optimizer* optimizer, const spw_parameter* parameter,
                                         size_t* number);
/* Removes a parameter, so that its tensors may be unregistered or given again. Its state stays
 * registered. Its number is not used again. */
SPW_EXPORT spw_status* spw_optimizer_remove(spw_optimizer* optimizer, size_t parameter);
/* The names and ids of a parameter's state, as StateSpecs lists it: [{"name":"w/m","id":3}, ...].
 */
SPW_EXPORT spw_status* spw_optimizer_state_json(spw_optimizer* optimizer, size_t parameter,
                                                char** json);
/* Updates the listed parameters, in order. Also declares the uses of their tiles. Every entry has
 * the size that the first one gives. Concurrent calls wait for each other. */
SPW_EXPORT spw_status* spw_optimizer_step(spw_optimizer* optimizer, const spw_update* updates,
                                          size_t num_updates);
/* Outputs the leases that spw_optimizer_step takes for these parameters, in order. `uses` is freed
 * with spw_free. */
SPW_EXPORT spw_status* spw_optimizer_uses(spw_optimizer* optimizer, const size_t* parameters,
                                          size_t num_parameters, spw_use** uses, size_t* num_uses);
SPW_EXPORT uint64_t spw_optimizer_min_pinned_bytes(spw_optimizer* optimizer);
/* Writes the master weights of a parameter to `masters`, in fp32 and row-major, whatever the format
 * of its state. `num_elements` must be the parameter's number of elements. Under SPW_STATE_COMPACT
 * the state's tiles must be as spw_optimizer_write_state says. */
SPW_EXPORT spw_status* spw_optimizer_masters(spw_optimizer* optimizer, size_t parameter,
                                             float* masters, uint64_t num_elements);

/* The values of a parameter's state, in fp32 and row-major, whatever its format. */
typedef struct {
  size_t size;
  size_t parameter;
  /* The address of a weight in the caller's memory, for this call only; NULL: unchanged. */
  void* weight_memory;
  /* Each array has `num_elements` elements. If `masters` is NULL, or `num_moments` is 0, these
   * values are not read or not changed. Otherwise there must be all moments of the parameter's
   * rule, in the order of StateSpecs. */
  float* masters;
  float* const* moments;
  size_t num_moments;
  uint64_t num_elements;
} spw_state;

SPW_EXPORT void spw_state_init(spw_state* state, size_t size);
SPW_EXPORT spw_status* spw_optimizer_read_state(spw_optimizer* optimizer, const spw_state* state);
/* Rounds moments to the format, at random if updates do so, and master weights to nearest. A
 * 16-bit weight does not change, except under SPW_STATE_COMPACT, where it holds most bits of its
 * master weight. An fp32 weight is its own master weight, so `masters` are written to it. Reading
 * and writing return SPW_INVALID_ARGUMENT if the rule is Adafactor, whose tensors hold plain fp32
 * values (spw_read). They also return it if the tiles of the state's tensors are not those that
 * StateSpecs lists for one and the same tile_rows, although updates accept such tensors;
 * spw_optimizer_add registers none. */
SPW_EXPORT spw_status* spw_optimizer_write_state(spw_optimizer* optimizer, const spw_state* state);

#ifdef __cplusplus
}
#endif

#endif /* SPILLWAY_SPILLWAY_H_ */
