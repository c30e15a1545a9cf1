// The engine's side of a receiver's directory as a stable C ABI: brings the weights in a running
// engine's memory from one committed version to the next (docs/engine.md). The caller owns a
// handle. One thread at a time uses it, but dw_engine_committed and dw_engine_wait may run beside
// it. An update costs its changes; adopt and check read every byte. A call returns DW_ENGINE_OK or
// a code, and dw_engine_last_error() says what happened and what to do.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define DW_ENGINE_API __attribute__((visibility("default")))
#else
#define DW_ENGINE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Rises when functions or fields are added. What was there keeps its meaning for as long as the
 * library's SOVERSION stays. */
#define DW_ENGINE_ABI_VERSION 4

/* Every function that can fail returns one of these (the numbers are gRPC's). After an error the
 * engine's memory is what it was before the call. */
typedef enum dw_engine_status {
  DW_ENGINE_OK = 0,
  DW_ENGINE_CANCELLED = 1,
  DW_ENGINE_UNKNOWN = 2,
  DW_ENGINE_INVALID_ARGUMENT = 3,
  DW_ENGINE_DEADLINE_EXCEEDED = 4,
  DW_ENGINE_NOT_FOUND = 5,
  DW_ENGINE_ALREADY_EXISTS = 6,
  DW_ENGINE_PERMISSION_DENIED = 7,
  DW_ENGINE_RESOURCE_EXHAUSTED = 8,
  DW_ENGINE_FAILED_PRECONDITION = 9, /* e.g. what the memory holds is not known */
  DW_ENGINE_ABORTED = 10,
  DW_ENGINE_OUT_OF_RANGE = 11,
  DW_ENGINE_UNIMPLEMENTED = 12,
  DW_ENGINE_INTERNAL = 13,
  DW_ENGINE_UNAVAILABLE = 14, /* nothing is committed now, or another version was: try again */
  DW_ENGINE_DATA_LOSS = 15
} dw_engine_status;

typedef struct dw_engine dw_engine;

/* Text of this thread's last error; "" if its last call had none. Valid until its next call. */
DW_ENGINE_API const char* dw_engine_last_error(void);
/* DW_ENGINE_ABI_VERSION, and the release, of the loaded library. */
DW_ENGINE_API uint32_t dw_engine_abi_version(void);
DW_ENGINE_API const char* dw_engine_version(void);

/* ---- The directory and its model ------------------------------------------------------------ */

typedef struct dw_engine_options {
  size_t struct_size;    /* sizeof(dw_engine_options) */
  const char* directory; /* a receiver's, of one model that has been committed once */
  uint32_t threads;      /* that compare, decode and write, the caller included; 0: one per core */
} dw_engine_options;

DW_ENGINE_API int dw_engine_open(const dw_engine_options* options, dw_engine** engine);
/* Leaves the engine's memory alone. NULL is allowed. */
DW_ENGINE_API void dw_engine_close(dw_engine* engine);

typedef struct dw_engine_model {
  size_t struct_size;
  uint32_t tensors;
  uint64_t bytes;       /* of all tensors */
  char fingerprint[33]; /* of their names, types and shapes: 32 hex digits */
  uint32_t chunks;      /* that digests are of. Since version 3 of the ABI */
} dw_engine_model;
DW_ENGINE_API int dw_engine_get_model(const dw_engine* engine, dw_engine_model* model);

typedef struct dw_engine_tensor {
  size_t struct_size;
  const char* name;  /* the HF name; lives as long as the handle, as the two below do */
  const char* dtype; /* as in safetensors: "BF16", "F32", "F8_E4M3", ... */
  const uint64_t* shape;
  uint32_t ndim; /* 0: a scalar */
  uint64_t bytes;
} dw_engine_tensor;
DW_ENGINE_API int dw_engine_get_tensor(const dw_engine* engine, uint32_t tensor,
                                       dw_engine_tensor* out);

/* The whole name of a committed state: two states are the same where all of it is equal. This
 * struct never grows. */
typedef struct dw_engine_identity {
  uint64_t lineage[2]; /* upper half first */
  uint64_t epoch;      /* 0: no state */
  uint64_t version;
  uint64_t root;
} dw_engine_identity;

/* Writes "version 7 (lineage edbee4f0, root 0f3c…)" and a NUL into `text`, cut at `bytes`. Returns
 * the length of all of it, as snprintf does. */
DW_ENGINE_API size_t dw_engine_describe(const dw_engine_identity* identity, char* text,
                                        size_t bytes);

/* What the receiver has committed; epoch 0: nothing now. */
DW_ENGINE_API int dw_engine_committed(const dw_engine* engine, dw_engine_identity* identity);
/* Asked about every 2 ms while a wait lasts; another number than 0 ends it. */
typedef int (*dw_engine_gone)(void* context);
/* Returns when something other than `known` is committed, or DW_ENGINE_DEADLINE_EXCEEDED, or
 * DW_ENGINE_CANCELLED as `gone` (or NULL) says. */
DW_ENGINE_API int dw_engine_wait(const dw_engine* engine, const dw_engine_identity* known,
                                 uint64_t timeout_ms, dw_engine_gone gone, void* context,
                                 dw_engine_identity* committed);

/* ---- The engine's memory -------------------------------------------------------------------- */

/* Memory with parameters in it, and perhaps with other things. */
typedef struct dw_engine_storage {
  size_t struct_size; /* in every element of an array, here and below */
  const char* name;   /* for messages */
  void* memory;       /* stays until another binding, or the handle's end */
  uint64_t bytes;
} dw_engine_storage;

/* A box of a tensor and the place that it has in a storage: nested counts, outermost first. All
 * numbers are in elements of the tensor's type; offsets count from the first element of the tensor
 * (source) and of the storage (place). */
typedef struct dw_engine_box {
  size_t struct_size;
  uint32_t tensor;
  uint32_t storage;
  uint32_t ndim;          /* 1 to DW_ENGINE_BOX_DIMS */
  const uint64_t* counts; /* each at least 1 */
  int64_t source_offset;
  const int64_t* source_strides; /* above 0 where the count is above 1, as those of the place */
  int64_t place_offset;
  const int64_t* place_strides;
} dw_engine_box;
#define DW_ENGINE_BOX_DIMS 6

/* From now on this is the engine's memory; what it holds is unknown until dw_engine_adopt. Refuses
 * boxes that leave a tensor or a storage, and two that share a place, also by two storages. */
DW_ENGINE_API int dw_engine_bind(dw_engine* engine, const dw_engine_storage* storages,
                                 size_t storage_count, const dw_engine_box* boxes,
                                 size_t box_count);
/* A GPU, and the cudaStream_t on which the engine computes there; NULL: the default one. Since
 * version 4 of the ABI, as the two calls below. */
typedef struct dw_engine_device {
  size_t struct_size;
  int32_t device; /* its number, as CUDA counts */
  void* stream;
} dw_engine_device;

/* Whether this library can write to the device's memory: DW_ENGINE_UNIMPLEMENTED where it was built
 * without CUDA, DW_ENGINE_FAILED_PRECONDITION where there is no such device. */
DW_ENGINE_API int dw_engine_find_device(int32_t device);
/* As dw_engine_bind, where all storages are memory of this device. An error of the device within
 * dw_engine_apply or dw_engine_rollback leaves its state unknown; no other error does. */
DW_ENGINE_API int dw_engine_bind_device(dw_engine* engine, const dw_engine_storage* storages,
                                        size_t storage_count, const dw_engine_box* boxes,
                                        size_t box_count, const dw_engine_device* device);
/* Bytes of a bound storage that no box has. */
DW_ENGINE_API int dw_engine_unmapped(const dw_engine* engine, uint32_t storage, uint64_t* bytes);

/* What the engine's memory has of a chunk that is not all there: the parts of all ranks add up,
 * modulo 2^64, to the chunk's digest. This struct never grows. */
typedef struct dw_engine_part {
  uint32_t chunk;
  uint64_t bytes;
  uint64_t digest;
} dw_engine_part;

/* The same, with what tells whether the ranks' parts can be added up. Since version 3 of the ABI.
 * This struct never grows. */
typedef struct dw_engine_share {
  uint32_t chunk;
  uint64_t bytes;
  uint64_t digest;
  uint64_t places; /* the digest if each of these bytes were 1 */
} dw_engine_share;

typedef struct dw_engine_comparison {
  size_t struct_size;
  dw_engine_identity identity; /* what the memory was compared with */
  uint64_t bytes;
  const uint32_t* different; /* tensors that have other bytes in memory */
  size_t different_count;
  const dw_engine_part* parts; /* of dw_engine_check; the arrays live until the next comparison */
  size_t part_count;
  const dw_engine_share* shares; /* of a check. Since version 3 of the ABI */
  size_t share_count;
} dw_engine_comparison;

/* Compares all bound memory with what is committed, bit by bit. Where nothing differs, the memory
 * is that state from now on: dw_engine_held. */
DW_ENGINE_API int dw_engine_adopt(dw_engine* engine, dw_engine_comparison* result);
/* Compares the digests of chunks that are all in this memory with those of dw_engine_held. What has
 * drifted comes whole, out of the receiver's buffer, with the next update that is prepared. */
DW_ENGINE_API int dw_engine_check(dw_engine* engine, dw_engine_comparison* result);
/* The same of `count` chunks from `first` on. Since version 3 of the ABI. */
DW_ENGINE_API int dw_engine_check_chunks(dw_engine* engine, uint32_t first, uint32_t count,
                                         dw_engine_comparison* result);
/* Compares chunks that several ranks have parts of, by the shares of all ranks; every rank is given
 * the same. `bytes` of the result: of chunks that could be judged, which are those whose bytes are
 * all on equally many ranks. Since version 3 of the ABI. */
DW_ENGINE_API int dw_engine_judge(dw_engine* engine, const dw_engine_share* shares,
                                  size_t share_count, dw_engine_comparison* result);
/* The digest that a chunk of dw_engine_held has. */
DW_ENGINE_API int dw_engine_digest(const dw_engine* engine, uint32_t chunk, uint64_t* digest);
/* What the memory is; epoch 0: not known. */
DW_ENGINE_API int dw_engine_held(const dw_engine* engine, dw_engine_identity* identity);

/* ---- Updates -------------------------------------------------------------------------------- */

typedef struct dw_engine_update {
  size_t struct_size;
  dw_engine_identity from, to;
  uint64_t deltas;  /* delta files in the chain; 0: everything comes from the receiver's buffer */
  uint64_t changes; /* elements that payloads change, of the whole model */
  uint64_t chunks_by_delta;
  uint64_t chunks_whole; /* read from the buffer */
  uint64_t payload_bytes;
  uint64_t chunks_healed; /* of chunks_whole: had drifted. Since version 3 of the ABI */
} dw_engine_update;

/* Makes the way from what is held to what is committed ready, and checks all of it; writes nothing.
 * An update that was applied before can no longer be rolled back. `update` may be NULL. */
DW_ENGINE_API int dw_engine_prepare(dw_engine* engine, dw_engine_update* update);
/* The tensors that the prepared update changes, in rising order. The array lives until the next
 * prepare, discard, apply or bind. */
DW_ENGINE_API int dw_engine_changed(const dw_engine* engine, const uint32_t** tensors,
                                    size_t* count);
/* Forgets what was prepared, and gives its memory back; what was applied stays. Since version 2 of
 * the ABI. */
DW_ENGINE_API int dw_engine_discard(dw_engine* engine);
/* Writes what was prepared; the engine must not compute meanwhile. */
DW_ENGINE_API int dw_engine_apply(dw_engine* engine);
/* Makes the memory what it was before the last apply. */
DW_ENGINE_API int dw_engine_rollback(dw_engine* engine);

/* Which state's bytes dw_engine_read gives. */
typedef enum dw_engine_state {
  DW_ENGINE_STATE_HELD = 0,
  DW_ENGINE_STATE_PREPARED = 1
} dw_engine_state;
/* Copies a whole tensor out of the receiver's buffer, for an engine that computes with it. Its
 * digests are checked. DW_ENGINE_UNAVAILABLE where the buffer is another state by now. `bytes` must
 * be the tensor's. */
DW_ENGINE_API int dw_engine_read(const dw_engine* engine, int state, uint32_t tensor, void* to,
                                 uint64_t bytes);

#ifdef __cplusplus
}
#endif
