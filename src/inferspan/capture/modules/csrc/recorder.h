/* Shared by the files of the extension: its state, its types, and the functions that one file calls in another.
 *
 * The extension records module calls on the model's path; call_log.py, boundaries.py and records.ModuleCalls are its counterpart in Python.
 * Between two kernel launches Python's own memory is cold, so the cost of a call is the number of objects that it touches: two readings of
 * the clock, two shapes that are compared, one row. Python handles what few calls have (other shapes, statistics, failures, copies of
 * modules). Only the limited API is used, and no header of torch or CUDA.
 *
 *     calls.c            Calls: the ended calls of one pass
 *     call_log.c         CallLog: the running and ended calls of one request
 *     call_figures.c     CallFigures: calls of many passes, added up by module
 *     kept_outputs.c     KeptOutputs: outputs that are counted some passes later
 *     kept_kinds.c       their shapes and types
 *     pass_template.c    PassTemplate: the spans of a pass as OTLP bytes
 *     shapes.c           describes inputs and outputs
 *     native_events.c    NativeEvents: records the events of one device by the driver's functions
 *     boundary_events.c  BoundaryEvents: the boundaries of one pass, and the times between them
 *     boundaries.c       Boundaries: which entries and exits of the running pass get an event
 *     module_caller.c    ModuleCaller: calls a module and records the call
 *     attaching.c        puts callers into the slots of modules, takes them out, and sees whether the structure has changed
 *     plain_call.c       whether torch would only call a module's forward
 *     reductions.c       counts and moments of values in the memory of the host
 *     module.c           bind() and the module itself
 *
 * Functions return NULL or -1 with an exception set unless their comment states otherwise.
 */
#ifndef INFERSPAN_RECORDER_H
#define INFERSPAN_RECORDER_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>

#ifdef _WIN32
#include <windows.h>
#else
#include <time.h>
#endif

/* The extension exports its init function only: no name below can clash with one of the program. */
#if defined(__GNUC__) && !defined(_WIN32)
#pragma GCC visibility push(hidden)
#endif

/* DLPack's interface between libraries, https://dmlc.github.io/dlpack/latest/c_api.html, as far as it is used here. It gives a tensor's type
 * and sizes where they lie in memory; an attribute of Python creates an object for each, which takes three times as long as all else here.
 * It also asks for the address of the data, which gives a lazy clone (torch._lazy_clone) its own copy before anything is written to it. */
typedef struct {
    void *data;
    struct {
        int32_t type, index;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    struct {
        struct {
            uint32_t major, minor;
        } version;
        void *previous;
    } header;
    void *allocator, *managed_from_object, *managed_to_object;
    int (*tensor_from_object)(void *object, DLTensor *out);
    void *current_work_stream;
} DLPackExchangeAPI;

/* Of a module, in the order of their names; from FORWARD_HOOKS on those of its forward. */
enum { FORWARD_HOOKS = 2, HOOK_TABLES = 4 };

/* One for the process: a second load of the extension gets the types that are in use. */
typedef struct {
    /* Given to bind() by recorder.py. */
    PyObject *current;        /* .call is the request that runs on this thread */
    PyObject *describe;       /* shapes.describe */
    PyObject *looks_into;     /* shapes.looks_into */
    PyObject *failed;         /* called with an exception of ours */
    PyObject *error_type;     /* failures.error_type */
    PyTypeObject *tensor;     /* torch.Tensor itself, no subclass */
    PyObject *perf_counter;   /* time.perf_counter_ns */
    PyObject *tracing;        /* torch._C._get_tracing_state */
    PyObject *call_impl;      /* nn.Module._call_impl */
    PyObject *hook_tables;    /* its globals, with the tables of hooks of all modules */
    PyObject *columns;        /* records.ModuleColumns */
    Py_ssize_t most_entries;  /* shapes.MAX_ENTRIES */

    /* Reads a tensor by DLPack. NULL if this torch has no such function, or after MOST_REFUSALS tensors that DLPack cannot express: torch
     * takes a millisecond to refuse one. */
    int (*view)(void *object, DLTensor *out);
    int (*always_view)(void *object, DLTensor *out); /* the same, whatever was refused */
    int refusals;

    PyTypeObject *calls_type, *call_log_type, *native_events_type, *boundary_events_type, *boundaries_type, *caller_type, *figures_type, *kept_type, *template_type;
    PyObject *empty; /* () */
    PyObject *descriptions; /* by the bytes of their key; NULL until there are some */
    PyObject *str_append, *str_call, *str_call_impl, *str_dict, *str_dtype, *str_forward, *str_instead, *str_modules, *str_native, *str_other, *str_record,
        *str_is_view, *str_nbytes, *str_requires_grad, *str_seconds, *str_shape, *str_slot, *str_stage, *str_storage, *str_version;
    PyObject *str_hook_tables[HOOK_TABLES], *str_global_hook_tables[HOOK_TABLES];
} State;

extern State state;

extern PyType_Spec calls_spec, call_log_spec, native_events_spec, boundary_events_spec, boundaries_spec, caller_spec, figures_spec, kept_spec, template_spec;

static inline PyObject *
owned(PyObject *object)
{
    Py_INCREF(object);
    return object;
}

/* The clock of time.perf_counter_ns(). */
static inline int64_t
now_ns(void)
{
#if defined(_WIN32)
    static int64_t frequency;
    LARGE_INTEGER ticks;
    if (frequency == 0) {
        LARGE_INTEGER each;
        QueryPerformanceFrequency(&each);
        frequency = each.QuadPart;
    }
    QueryPerformanceCounter(&ticks);
    return (ticks.QuadPart / frequency) * 1000000000LL + (ticks.QuadPart % frequency) * 1000000000LL / frequency;
#elif defined(__APPLE__)
    return (int64_t)clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
#else
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (int64_t)moment.tv_sec * 1000000000LL + moment.tv_nsec;
#endif
}

/* ---------------------------------------------------------------------------------------------------------------- calls.c */

/* An ended call. */
typedef struct {
    int32_t number;
    int32_t parent;
    PyObject *info;
    int64_t start;
    int64_t end;
    PyObject *inputs;
    PyObject *outputs;
    PyObject *failure;   /* NULL is None */
    int64_t statistics;  /* -1 is None */
} Row;

typedef struct {
    PyObject_HEAD
    Row *rows;
    Py_ssize_t count;
} Calls;

void drop_rows(Row *rows, Py_ssize_t count);

/* Methods of Calls; see call_figures.c and pass_template.c. */
PyObject *new_figures(PyObject *unused, PyObject *args);
PyObject *new_template(PyObject *self, PyObject *args);

/* ------------------------------------------------------------------------------------------------------------- call_log.c */

/* A running call. */
typedef struct {
    int32_t number;
    uint64_t serial; /* no two frames of a log have the same */
    PyObject *info;
    int64_t start;
    PyObject *inputs;
} Frame;

typedef struct {
    PyObject_HEAD
    Py_ssize_t calls_left, missed, count;
    Py_ssize_t stages_left; /* as calls_left, for calls of stages; below 0 it counts those that were left out */
    PyObject *engine, *clock, *output_stats, *keeper; /* NULL is None */
    Frame *frames;
    Py_ssize_t open, frames_capacity;
    Row *rows;
    Py_ssize_t recorded, rows_capacity;
    Py_ssize_t usual; /* rows that the last pass had */
    uint64_t serial;
} CallLog;

/* Neither push_frame nor pop_frame runs any Python. There must be a frame to pop. `failure` is NULL or a str; `statistics` is -1 or an index. */
int push_frame(CallLog *log, PyObject *info, PyObject *inputs, int64_t moment, int stage);
int pop_frame(CallLog *log, int64_t moment, PyObject *outputs, PyObject *failure, int64_t statistics);

/* Whether `info` is that of a stage: 1 or 0. */
int is_stage(PyObject *info);

/* End what is open above the innermost call of `info`: 1, or 0 if there is no such call and nothing was ended. */
int reach(CallLog *log, PyObject *info, int64_t moment, PyObject *failure);

/* --------------------------------------------------------------------------------------------------------------- shapes.c */

enum { SHORT_KEY = 5, UNKNOWN_KEY = -1, NO_KEY = -2, MOST_REFUSALS = 32 };

/* The last inputs or outputs of a module: their description, and a key by which the next ones are compared with them. */
typedef struct {
    PyObject *known;          /* tuple of pairs, (shape, dtype) */
    int32_t length;           /* of the key, or UNKNOWN_KEY or NO_KEY */
    int64_t brief[SHORT_KEY]; /* the key: for each tensor its type and number of dimensions in one, then its sizes */
    int64_t *more;            /* the key, if it is longer */
} Description;

/* Describe a tensor or tuple, and the values of `named` (NULL or a dict), as shapes.describe_like does. A new reference. */
PyObject *describe_like(Description *last, PyObject *value, PyObject *named);
void forget_description(Description *last);

/* -------------------------------------------------------------------------------------------------------- native_events.c */

enum { NOTHING = -1, SUCCESS = 0, NOT_READY = 600, MOST_DEVICES = 8 };

typedef int (*RecordEvent)(void *event, void *stream);
typedef int (*ElapsedTime)(float *milliseconds, void *begin, void *end);

/* The events of one device's pool, if the driver's functions can be called from C. The lists are the pool's. */
typedef struct {
    PyObject_HEAD
    PyObject *free;      /* list of slots */
    PyObject *handles;   /* list of the driver's handles, by slot */
    PyObject *stream;    /* stream(index) is the handle of the device's current stream */
    PyObject *capturing; /* capturing() is whether the current device's current stream captures a graph */
    PyObject *device;    /* device() is the current device */
    PyObject *index;
    RecordEvent record;
    ElapsedTime elapsed;
    char several, enabled;
} NativeEvents;

/* As DriverEvents.record: 0 and the slot in `*slot` (NOTHING while a graph is captured), or 1 if the pool has to be asked. */
int native_record(NativeEvents *native, int32_t *slot);

/* The NativeEvents of a pool as a new reference, None if it has none. */
PyObject *native_events_of(PyObject *pool);

/* ------------------------------------------------------------------------------------------------------ boundary_events.c */

/* The entry or exit of a call. */
typedef struct {
    int32_t number;   /* of the call; inverted if it is the exit */
    int32_t boundary; /* index of the boundary that measures it */
} Edge;

typedef struct {
    PyObject_HEAD
    int devices;
    int32_t *slots; /* by boundary, then by device */
    Py_ssize_t boundaries;
    Edge *edges;
    Py_ssize_t count;
} BoundaryEvents;

/* ----------------------------------------------------------------------------------------------------------- boundaries.c */

typedef struct {
    PyObject_HEAD
    PyObject *pools;                /* tuple */
    PyObject *native[MOST_DEVICES]; /* NativeEvents or None, by device */
    int devices;
    PyObject *clock; /* NULL is perf_counter_ns */
    int64_t share_ns, share_data_ns, recorded;
    int last;
    int32_t *slots;
    Py_ssize_t slots_capacity;
    Edge *edges;
    Py_ssize_t count, edges_capacity;
    PyObject **inputs; /* weak references to the inputs of open calls, NULL for one without a plain tensor */
    Py_ssize_t open, inputs_capacity;
    PyObject *output; /* weak reference to the output of the last call, or NULL */
} Boundaries;

/* As Boundaries.enter and .leave in Python; `moment` 0 is now. */
int enter_boundary(Boundaries *boundaries, int64_t number, PyObject *input, int64_t moment, int inner);
int leave_boundary(Boundaries *boundaries, int64_t number, PyObject *output, int64_t moment, int inner);

/* -------------------------------------------------------------------------------------------------------- module_caller.c */

typedef struct {
    PyObject_HEAD
    PyObject *module, *info, *engine;
    PyObject *watch;   /* called with module, arguments and output where the output is looked at; NULL is None */
    int32_t number;    /* of the module among those whose outputs are kept, or -1 */
    char inner, attached, stage;
    char records;      /* whether calls are recorded, and not only looked at */
    Py_ssize_t running; /* running calls; each holds a reference from the frame that called it */
    Description inputs, outputs;
} ModuleCaller;

/* Observe the module; the caller has none. */
int take_module(ModuleCaller *caller, PyObject *module);

/* ------------------------------------------------------------------------------------------------------------ attaching.c */

PyObject *attach_callers(PyObject *module, PyObject *args);
PyObject *detach_callers(PyObject *module, PyObject *args);
PyObject *same_structure(PyObject *module, PyObject *args);

/* ----------------------------------------------------------------------------------------------------------- plain_call.c */

/* Whether _call_impl of the module, with the dictionary `own`, would only call its forward: PLAIN or NOT_PLAIN. TRACED if TorchScript traces
 * the call, which would record reading a shape in its graph. */
enum { NOT_PLAIN, PLAIN, TRACED };

int is_plain(PyObject *module, PyObject *own);

/* Contain the exception that is set, one of ours; -1 if one is set that may not be contained, such as Ctrl-C. */
int contained(void);

/* --------------------------------------------------------------------------------------------------------- kept_outputs.c */

/* Keep an output that is like those that `keeper`, a KeptOutputs, was told of: 1, or 0 if Python has to look at it. `row` is the number of
 * the recorded call, or -1. Raises nothing. */
int keep_output(PyObject *keeper, PyObject *output, int32_t module, int32_t row);

/* ----------------------------------------------------------------------------------------------------------- reductions.c */

PyObject *count_values(PyObject *module, PyObject *args);
PyObject *moments_of(PyObject *module, PyObject *args);

/* --------------------------------------------------------------------------------------------------------------- logits.c */

PyObject *reduce_logits(PyObject *module, PyObject *args);

#if defined(__GNUC__) && !defined(_WIN32)
#pragma GCC visibility pop
#endif
#endif
