// The trainer's library as a stable C ABI: it writes versions of a model into the sender's memory,
// and directs the daemons. Structs begin with their size, so that they can grow. The caller
// destroys each handle. A client has one caller at a time, but dw_offload_write, _data and _tensor
// of one offload may run at once. On error a call returns a code, and dw_last_error() has the cause
// and the remedy.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define DW_API __attribute__((visibility("default")))
#else
#define DW_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Rises when functions or fields are added. Existing ones keep their meaning as long as the
 * library's SOVERSION stays. */
#define DW_ABI_VERSION 12

/* The result of every function that can fail. The numbers are gRPC's. */
typedef enum dw_status {
  DW_OK = 0,
  DW_CANCELLED = 1,
  DW_UNKNOWN = 2,
  DW_INVALID_ARGUMENT = 3,
  DW_DEADLINE_EXCEEDED = 4, /* no answer in time */
  DW_NOT_FOUND = 5,
  DW_ALREADY_EXISTS = 6,
  DW_PERMISSION_DENIED = 7,
  DW_RESOURCE_EXHAUSTED = 8,  /* memory is short, at the sender or here */
  DW_FAILED_PRECONDITION = 9, /* e.g. another layout is registered; tensors are missing */
  DW_ABORTED = 10,            /* the offload was abandoned: a rank died, hung or ended it */
  DW_OUT_OF_RANGE = 11,
  DW_UNIMPLEMENTED = 12,
  DW_INTERNAL = 13,
  DW_UNAVAILABLE = 14, /* no sender at the endpoint, or it is stopping */
  DW_DATA_LOSS = 15,
  DW_UNAUTHENTICATED = 16 /* since DW_ABI_VERSION 9 */
} dw_status;

typedef struct dw_client dw_client;
typedef struct dw_offload dw_offload;

/* Returns the text of this thread's last error, or "" if its last call succeeded. Valid until its
 * next call. */
DW_API const char* dw_last_error(void);
/* The loaded library's DW_ABI_VERSION and release. */
DW_API uint32_t dw_abi_version(void);
DW_API const char* dw_version(void);

/* ---- Client: one per rank ------------------------------------------------------------------ */

typedef struct dw_client_options {
  size_t struct_size;    /* sizeof(dw_client_options) */
  const char* endpoint;  /* the sender's trainer socket, or its data directory */
  const char* model;     /* 1 to 128 of A-Z a-z 0-9 . _ -, the first not '.' */
  uint32_t rank;         /* 0 .. world-1 */
  uint32_t world;        /* ranks that write a version together; 0: 1 */
  uint32_t timeout_ms;   /* of each call; 0: 30000 */
  uint32_t copy_threads; /* of dw_offload_write, its caller included; 0: a few */
  /* Since DW_ABI_VERSION 3: */
  const char* publisher; /* name in messages to others; NULL: program, process and host */
} dw_client_options;

/* Makes a client. It connects when the first call needs the sender. */
DW_API int dw_client_create(const dw_client_options* options, dw_client** client);
/* NULL is allowed. REQUIRES: the client's offloads are destroyed. */
DW_API void dw_client_destroy(dw_client* client);
/* Calls `gone` ten times a second, on the caller's thread, while dw_client_register,
 * dw_offload_begin or dw_wait_published waits for the sender's answer. If `gone` returns another
 * number than 0, that call ends with DW_CANCELLED, as an interpreter needs for Ctrl-C. NULL: no
 * such check. Since DW_ABI_VERSION 9. */
typedef int (*dw_gone)(void* context);
DW_API int dw_client_set_gone(dw_client* client, dw_gone gone, void* context);
/* Names one start of this rank's job, in at most 256 bytes: the same text at all its ranks, another
 * one after a restart. Ranks of a world above 1 need it to find one another, or an attempt. An
 * offload with neither fails (DW_INVALID_ARGUMENT), because it could join the remains of a dead
 * run. One rank can draw it (dw_draw_attempt) and hand it to the others. Since DW_ABI_VERSION
 * 10. */
DW_API int dw_client_set_job(dw_client* client, const char* job);
/* Calls `notice` with a line of text, on the caller's thread, when one of these calls begins to
 * wait for an absent sender. The line has the reason and the remedy. By default it goes to stderr;
 * with NULL it is discarded. Since DW_ABI_VERSION 10. */
typedef void (*dw_notice)(void* context, const char* text);
DW_API int dw_client_set_notice(dw_client* client, dw_notice notice, void* context);

typedef struct dw_tensor_meta {
  size_t struct_size;    /* sizeof(dw_tensor_meta), in every element of an array */
  const char* name;      /* the HF name, UTF-8 */
  const char* dtype;     /* as in safetensors: "BF16", "F32", "F8_E4M3", ... */
  const uint64_t* shape; /* elements; NULL when ndim is 0 */
  uint32_t ndim;         /* at most 16; 0: a scalar */
} dw_tensor_meta;

typedef struct dw_side_file {
  size_t struct_size;
  const char* name;    /* a plain file name, e.g. "config.json" */
  const void* content; /* bytes */
  uint64_t bytes;
} dw_side_file;

typedef struct dw_register_options {
  size_t struct_size;
  const dw_tensor_meta* tensors; /* a tensor's index is its place here */
  size_t tensor_count;
  const dw_side_file* side_files;
  size_t side_file_count;
  const char* hf_dir;  /* a HF model directory whose small files become side files; or NULL */
  int replace;         /* not 0: discard a registered model of another layout */
  int keep_side_files; /* not 0: keep the registered ones; ignore side_files and hf_dir's */
  /* Since DW_ABI_VERSION 11: the layout's chunks that this sender publishes, if other nodes'
   * senders publish the rest. Each range is its first chunk and its last + 1, in order; NULL: all.
   * Do not write to other chunks. */
  const uint32_t* owned;
  size_t owned_ranges;
} dw_register_options;

typedef struct dw_registered {
  size_t struct_size;
  uint64_t epoch; /* of the published version; 0: none */
  uint64_t version;
  uint64_t total_bytes;
  char fingerprint[33]; /* of the layout, 32 hex digits */
  /* Since DW_ABI_VERSION 3: */
  char lineage[33]; /* of the sender's model, 32 hex digits, also before its first version */
  uint64_t root;    /* of the published version */
} dw_registered;

/* Registers the model, which sizes the sender's buffers. Every rank calls it, with the same
 * tensors. `result` may be NULL. */
DW_API int dw_client_register(dw_client* client, const dw_register_options* options,
                              dw_registered* result);
/* Finds the index of a tensor. DW_NOT_FOUND: `name` was not registered. */
DW_API int dw_client_find(const dw_client* client, const char* name, uint32_t* tensor);

/* ---- Offload: the transfer of one version -------------------------------------------------- */

/* The ranks that write a tensor's bytes. */
typedef enum dw_share {
  DW_SHARE_NONE = 0, /* no mark yet */
  DW_SHARE_PART = 1, /* several ranks write shares of it: final when all ranks are ready */
  /* This rank alone writes it, and the bytes are final: the sender may diff them already. */
  DW_SHARE_WHOLE = 2,
  /* For dw_offload_write and dw_offload_mark_block: this rank alone writes the block, and the block
   * is final, but other ranks write other blocks of the tensor. The sender diffs a chunk when its
   * blocks are all finished. Overlapping blocks end the offload. A block without elements marks
   * nothing. Since DW_ABI_VERSION 3. */
  DW_SHARE_BLOCK = 3
} dw_share;

/* A block of elements in the caller's memory, and its position in the tensor. */
typedef struct dw_block {
  size_t struct_size;
  const void* data;       /* of the first element */
  uint32_t element_bytes; /* must be the tensor's */
  uint32_t ndim;          /* must be the tensor's */
  const uint64_t* shape;  /* of the block, elements */
  const int64_t* strides; /* bytes, any sign; NULL: contiguous in row-major order */
  const uint64_t* start;  /* of the block in the tensor, elements; NULL: all 0 */
} dw_block;

/* Draws an attempt: a random number, never 0, that ties the parts of one offload together, over
 * ranks and senders. It distinguishes the offload from others of the same version. One rank draws
 * it and hands it to the others. Since DW_ABI_VERSION 3. */
DW_API uint64_t dw_draw_attempt(void);

/* Begins version `version` (> 0) together with the other ranks. If this process dies while the
 * offload exists, the sender notices and abandons the version for all ranks at once. REQUIRES:
 * dw_client_register. */
DW_API int dw_offload_begin(dw_client* client, uint64_t version, dw_offload** offload);
/* Begins the offload as part of `attempt`. 0: the sender draws one for its own ranks, which
 * dw_client_set_job ties together; a sender that owns a part of the model (dw_megatron_register
 * with ranks) refuses 0. DW_FAILED_PRECONDITION names the publisher that already writes the model.
 * Since DW_ABI_VERSION 3. */
DW_API int dw_offload_begin_attempt(dw_client* client, uint64_t version, uint64_t attempt,
                                    dw_offload** offload);
/* Returns the offload's attempt, as given or as the sender drew it. Since DW_ABI_VERSION 3. */
DW_API uint64_t dw_offload_attempt(const dw_offload* offload);
/* Abandons the version if called before dw_offload_ready. NULL is allowed. */
DW_API void dw_offload_destroy(dw_offload* offload);

/* Returns the memory to write into: of one tensor, row-major, or of all tensors, tightly packed in
 * their order. Call dw_offload_mark_written when the bytes are in place. */
DW_API int dw_offload_tensor(dw_offload* offload, uint32_t tensor, void** data, uint64_t* bytes);
DW_API int dw_offload_data(dw_offload* offload, void** data, uint64_t* bytes);

/* The mapped file of an offload's memory, for a caller that registers memory with a driver and must
 * unregister it before the file is unmapped. Since DW_ABI_VERSION 8. */
typedef struct dw_mapping dw_mapping;
/* Keeps the file mapped until dw_mapping_destroy, beyond the offload and the client. `data` and
 * `bytes`, which may be NULL, get the whole mapping, the same in later offloads to this file.
 * DW_FAILED_PRECONDITION: the sender owns a part of the model, and the rest has no memory. */
DW_API int dw_offload_mapping(dw_offload* offload, dw_mapping** mapping, void** data,
                              uint64_t* bytes);
/* Returns 1 while an offload, a client or another dw_mapping keeps the file mapped, and 0 when no
 * later offload will write it. */
DW_API int dw_mapping_in_use(const dw_mapping* mapping);
/* NULL is allowed. */
DW_API void dw_mapping_destroy(dw_mapping* mapping);

/* Copies a block into its place, on several threads, and marks the tensor by `share`. */
DW_API int dw_offload_write(dw_offload* offload, uint32_t tensor, const dw_block* block, int share);
/* Does the same for a block on CUDA device `device`, if dw_gpu_available(). The device writes it
 * straight into the sender's memory, which stays pinned as long as it is mapped. All work on the
 * block must be complete; one call at a time. After an error nothing is marked: copy the block to
 * host memory and call dw_offload_write (DW_FAILED_PRECONDITION and DW_RESOURCE_EXHAUSTED: the
 * memory cannot be pinned; DW_UNIMPLEMENTED: no CUDA here, or too many dimensions). Since
 * DW_ABI_VERSION 6. */
DW_API int dw_offload_write_device(dw_offload* offload, uint32_t tensor, const dw_block* block,
                                   int32_t device, int share);
/* Does the same for several blocks, block i of tensors[i], and marks them; but the device hands
 * over only what has changed. For that it keeps a copy of the blocks, where an eighth of its memory
 * stays free, and else in pinned host memory. With DW_SHARE_PART of several ranks it copies all.
 * Each byte once an offload. dw_offload_tensor's memory has no bytes to read then. Since
 * DW_ABI_VERSION 12. */
DW_API int dw_offload_diff_device(dw_offload* offload, const uint32_t* tensors,
                                  const dw_block* blocks, size_t count, int32_t device, int share);
/* Returns where this rank's bytes of the offload were diffed, and why most of the others went
 * whole, as `deltawire status` shows it; "": no device was asked to. Valid until the next call or
 * dw_offload_destroy. Since DW_ABI_VERSION 12. */
DW_API const char* dw_offload_diffed_on(dw_offload* offload);
/* `share`: DW_SHARE_PART or DW_SHARE_WHOLE. */
DW_API int dw_offload_mark_written(dw_offload* offload, const uint32_t* tensors, size_t count,
                                   int share);
/* Marks a block that was written in place, as DW_SHARE_BLOCK does. `start` NULL: the tensor's first
 * element. Since DW_ABI_VERSION 3. */
DW_API int dw_offload_mark_block(dw_offload* offload, uint32_t tensor, uint32_t ndim,
                                 const uint64_t* start, const uint64_t* shape);
/* Makes the sender carry these tensors over from the published version. If that is not the last one
 * that this client made ready, dw_offload_ready is DW_FAILED_PRECONDITION, once. */
DW_API int dw_offload_mark_unchanged(dw_offload* offload, const uint32_t* tensors, size_t count);

/* Says that this rank is done. When all ranks are, the sender checks the version for completeness
 * and publishes it. DW_FAILED_PRECONDITION, without a call to the sender: this is the only rank,
 * and a tensor has only DW_SHARE_BLOCKs that leave bytes out. */
DW_API int dw_offload_ready(dw_offload* offload);
/* Returns DW_OK while the offload goes on, and DW_ABORTED once it is over for all ranks. Does not
 * call the sender. */
DW_API int dw_offload_check(const dw_offload* offload);
/* Abandons the version for all ranks, which get `reason`. */
DW_API int dw_offload_abandon(dw_offload* offload, const char* reason);
/* Returns how many seconds dw_offload_begin waited for readers of the memory. */
DW_API double dw_offload_waited_seconds(const dw_offload* offload);

typedef struct dw_published {
  size_t struct_size;
  uint64_t epoch;
  uint64_t version;
  uint64_t model_bytes;
  uint64_t delta_bytes; /* of the encoded delta */
  uint64_t full_bytes;  /* of chunks that are sent whole */
  uint64_t elements;
  uint64_t changed_elements;
  double trainer_wait_seconds;
  double offload_seconds;
  double publish_seconds;
  int64_t ready_unix_nanos;
  /* Since DW_ABI_VERSION 3: */
  char lineage[33]; /* of the sender's model, 32 hex digits */
  uint64_t root;    /* over all chunks' digests; with the fields above it names the bytes */
  uint64_t attempt;
  int64_t published_unix_nanos;
} dw_published;

/* Blocks until `version` or a newer one is published. `timeout_ms` 0: the client's. DW_ABORTED,
 * with the reason, as soon as this client's offload of `version` is abandoned. `result` may be
 * NULL. */
DW_API int dw_wait_published(dw_client* client, uint64_t version, uint32_t timeout_ms,
                             dw_published* result);

/* ---- Megatron: shards of a parallel job to HF tensors --------------------------------------- */

/* docs/model_families.md says what a family and a parallel config are. */

typedef struct dw_megatron dw_megatron;
typedef struct dw_collective dw_collective;

typedef struct dw_megatron_options {
  size_t struct_size;
  const char* hf_dir;             /* with config.json; tensors, if any, fix the layout */
  const char* parallel;           /* "tp=4,pp=2,ep=8", or a JSON object of the same; no path */
  const char* family;             /* NULL: by config.json */
  const char* const* family_dirs; /* directories of further families */
  size_t family_dir_count;
  uint32_t threads; /* that copy, the caller included; 0: one per core */
} dw_megatron_options;

/* Plans the export of a whole job from metadata, and proves that its ranks' shards write every byte
 * of the HF tensors exactly once. Otherwise DW_FAILED_PRECONDITION names the tensors. */
DW_API int dw_megatron_create(const dw_megatron_options* options, dw_megatron** megatron);
DW_API void dw_megatron_destroy(dw_megatron* megatron);

/* Returns tensors_meta of the HF tensors that the shards form. Texts and shapes live until
 * dw_megatron_destroy. */
DW_API size_t dw_megatron_tensor_count(const dw_megatron* megatron);
DW_API int dw_megatron_tensor(const dw_megatron* megatron, size_t tensor, dw_tensor_meta* meta);
/* Registers these tensors, with the small files of hf_dir, as dw_client_register does. `ranks` are
 * the ranks that write to this sender, if each of the job's nodes has a sender of its own; NULL:
 * all. The sender then owns the chunks that they write. DW_FAILED_PRECONDITION names tensors that
 * they share with other ranks. DW_NOT_FOUND: these ranks write nothing, and need no sender.
 * `result` may be NULL. */
DW_API int dw_megatron_register(const dw_megatron* megatron, dw_client* client,
                                const uint32_t* ranks, size_t rank_count, int replace,
                                dw_registered* result);

/* Returns 1 if this library has CUDA code and this process has a usable device. Otherwise returns
 * 0, and dw_last_error() has the reason. */
DW_API int dw_gpu_available(void);

/* Copies bytes [offset, offset + bytes) of a parameter to `to`, in host memory. Returns 0, or
 * another number if it fails. It is called on the thread of the call that got the parameter, before
 * that call returns. */
typedef int (*dw_read_bytes)(void* context, uint64_t offset, uint64_t bytes, void* to);

/* The `device` of host memory. CUDA devices count from 0. */
#define DW_HOST_MEMORY (-1)

/* A parameter or persistent buffer of the trainer, row-major. Its bytes are `data`, in host memory
 * or on a device, or the results of `read`. On a device, all work on them must be done and no
 * gather pending. Bytes outside host memory are copied over at most two buckets in host memory. */
typedef struct dw_param {
  size_t struct_size;
  uint32_t chunk;   /* virtual pipeline chunk */
  const char* name; /* Megatron's; a leading "module." is ignored */
  const char* dtype;
  const uint64_t* shape;
  uint32_t ndim;
  const void* data;
  int32_t device;     /* DW_HOST_MEMORY, or the CUDA device of `data`, if dw_gpu_available() */
  dw_read_bytes read; /* not NULL: used instead of data */
  void* read_context;
} dw_param;

/* Checks that these are the parameters of `rank`. DW_INVALID_ARGUMENT names missing and unknown
 * ones, and those of another shape or dtype. The calls below make this check first, and write
 * nothing if it fails. */
DW_API int dw_megatron_check(const dw_megatron* megatron, uint32_t rank, const dw_param* params,
                             size_t count);
/* Writes the shards of which `rank` is the first holder straight to their places, and marks them.
 * Every rank of the node calls it with an offload of its own, then dw_offload_ready. */
DW_API int dw_megatron_place(dw_megatron* megatron, dw_offload* offload, uint32_t rank,
                             const dw_param* params, size_t count, uint64_t* bytes);
/* Does the same, but devices hand over only what has changed, as in dw_offload_diff_device. Since
 * DW_ABI_VERSION 12. */
DW_API int dw_megatron_diff(dw_megatron* megatron, dw_offload* offload, uint32_t rank,
                            const dw_param* params, size_t count, uint64_t* bytes);

/* The library that carries the shards. */
typedef enum dw_collective_kind {
  /* TCP, neither encrypted nor authenticated. */
  DW_COLLECTIVE_GLOO = 0,
  /* Between devices; ranks still meet over Gloo, with the options below. DW_UNIMPLEMENTED if
   * libdeltawire_nccl.so cannot be loaded. A build with NCCL puts it beside this library. */
  DW_COLLECTIVE_NCCL = 1,
} dw_collective_kind;

/* The group of all of the job's ranks, for ranks that share no memory with the sender. */
typedef struct dw_collective_options {
  size_t struct_size;
  uint32_t rank;
  uint32_t size;
  uint32_t root;
  const char* rendezvous;    /* "file:DIR", a directory that all ranks see */
  const char* job;           /* a word for this group, not used before in DIR */
  const char* net_interface; /* to listen on; NULL: see address */
  const char* address;       /* to listen on; NULL: of this host's name */
  uint32_t timeout_ms;       /* of the meeting, and of every wait; 0: 120000 */
  int32_t kind;              /* dw_collective_kind, the same on every rank */
  int32_t device;            /* NCCL: this rank's CUDA device */
} dw_collective_options;
DW_API int dw_collective_create(const dw_collective_options* options, dw_collective** collective);
DW_API void dw_collective_destroy(dw_collective* collective);
/* Returns one attempt (dw_draw_attempt) on every rank, drawn by the root. Call it on every rank of
 * the group. Since DW_ABI_VERSION 5. */
DW_API int dw_collective_agree_attempt(dw_collective* collective, uint64_t* attempt);

/* Agrees whether all ranks of the group are ready to gather. Each calls it with its failure (cut
 * after 1 KiB), or with NULL. DW_OK: no rank failed, or this one reported a failure. DW_ABORTED, on
 * the other ranks: the first failed rank and its text. The group stays usable. Since DW_ABI_VERSION
 * 7. */
DW_API int dw_collective_check(dw_collective* collective, const char* failure);

typedef struct dw_gathered {
  size_t struct_size;
  uint64_t buckets;
  uint64_t network_bytes;
  uint64_t peak_buffer_bytes; /* of both buckets together */
  double wait_seconds;
  double place_seconds;  /* on the root */
  uint64_t bucket_bytes; /* of one bucket, as given or as DW_BUCKET_AUTO chose */
} dw_gathered;

/* Makes buckets as large as free memory allows: at most 512 MiB, and at most 1/8 of the free memory
 * of the rank with the least (on its device with NCCL, and in its share of the host), but at least
 * a parameter's row. */
#define DW_BUCKET_AUTO UINT64_MAX

/* Sends every rank's shards, bucket by bucket, to the root, which writes them into `offload` (NULL
 * on the other ranks) and marks them. Call it on every rank of the job. If a rank dies, the others
 * get an error within the collective's time-out; if it fails, they get its error. Either ends the
 * group: make another one, of another job. Report failures before the gather, such as the root's
 * begin, with dw_collective_check, which does not end the group. `bucket_bytes` is a multiple of
 * 64, the same on every rank; 0: 512 MiB; or DW_BUCKET_AUTO. `result` may be NULL. */
DW_API int dw_megatron_gather(dw_megatron* megatron, dw_collective* collective, dw_offload* offload,
                              uint32_t rank, const dw_param* params, size_t count,
                              uint64_t bucket_bytes, dw_gathered* result);

/* ---- Control: for programs that direct the daemons ------------------------------------------ */

/* A client of a daemon. This section exists since DW_ABI_VERSION 9. Any thread may call a
 * dw_control; one thread at a time calls a call's dw_control_next. */
typedef struct dw_control dw_control;
typedef struct dw_control_call dw_control_call;

typedef enum dw_daemon {
  DW_DAEMON_SENDER = 1,  /* SenderService of proto/deltawire/v1/sender.proto */
  DW_DAEMON_RECEIVER = 2 /* ReceiverService of receiver.proto */
} dw_daemon;

typedef struct dw_control_options {
  size_t struct_size;
  int32_t daemon;          /* dw_daemon */
  const char* address;     /* control address: HOST:PORT, [IPv6]:PORT or :PORT (loopback) */
  const char* credentials; /* credentials.toml; NULL: plaintext is dialled, and nothing is shown */
  uint32_t timeout_ms;     /* of connecting; 0: 10000 */
} dw_control_options;

/* Reads the credentials; it does not dial yet. Each call checks them and the files that they name
 * again, at most once a second. A call after a change uses the new ones, over a new connection.
 * Files that cannot be read are logged, and the old credentials stay in use. */
DW_API int dw_control_open(const dw_control_options* options, dw_control** control);
/* Running calls continue. NULL is allowed. */
DW_API void dw_control_close(dw_control* control);

#define DW_WAIT_FOREVER UINT32_MAX

/* Connects if necessary, and begins a call. `method` is a name, such as "GetStatus". `request` is a
 * JSON object with fields of the method's request (NULL: all have their defaults); unknown fields
 * are refused. `timeout_ms` covers the whole call; 0: none. DW_UNAVAILABLE: no daemon answers. */
DW_API int dw_control_start(dw_control* control, const char* method, const char* request,
                            uint32_t timeout_ms, dw_control_call** call);
/* Returns the call's next answer, a JSON object in one line in the form of docs/json.md, valid
 * until the call's next dw_control_next. A streaming call has many answers, another one has one.
 * NULL: the call has ended with success. "": no answer within `wait_ms` (0: it does not wait); ask
 * again. An error code says why the call has ended. */
DW_API int dw_control_next(dw_control_call* call, uint32_t wait_ms, const char** answer);
/* Ends the call with DW_CANCELLED, if it has not ended; a waiting dw_control_next returns. Any
 * thread may call it. */
DW_API void dw_control_cancel(dw_control_call* call);
/* Cancels the call and frees it. NULL is allowed. REQUIRES: no dw_control_next of it waits. */
DW_API void dw_control_call_destroy(dw_control_call* call);

#ifdef __cplusplus
}
#endif
