/* CallFigures: the module calls of many passes, added up by module. summaries.calls says what becomes of them, and does the same in Python.
 *
 * Between two steps of the model this memory is cold, so a call writes into two entries: its module's and that of the call around it. No Python
 * runs meanwhile. */
#include "recorder.h"
#include <math.h>

/* Numbers of the calls of a pass that may lie between those of two calls: for each call, and in all. */
enum { MOST_APART = 16, ALWAYS_APART = 1024 };

/* What the calls of a module come to. `values` are durations as long as there are few, `buckets` count all of them after that. */
typedef struct {
    PyObject *info, *inputs, *outputs; /* of the last call */
    int backward;
    int32_t first; /* number of the first call */
    int64_t last;  /* how many calls were added until the last one */
    int64_t calls, timed, measured;
    double host, device, inside, device_inside, least, greatest;
    double *values;
    int64_t kept, capacity;
    int64_t zeros, *buckets;
    int64_t lowest, width; /* index of the first bucket, and their number */
} Entry;

typedef struct {
    PyObject_HEAD
    Entry *entries;
    Py_ssize_t count, capacity;
    int32_t *table; /* open addressing: places in `entries`, -1 is free */
    Py_ssize_t slots;
    int64_t added; /* calls */
    int64_t exact;
    double growth, smallest;
} CallFigures;

static void
drop_entries(Entry *entries, Py_ssize_t count)
{
    for (Py_ssize_t place = 0; place < count; place++) {
        Py_XDECREF(entries[place].info);
        Py_XDECREF(entries[place].inputs);
        Py_XDECREF(entries[place].outputs);
        PyMem_Free(entries[place].values);
        PyMem_Free(entries[place].buckets);
    }
    PyMem_Free(entries);
}

static void
figures_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    drop_entries(((CallFigures *)self)->entries, ((CallFigures *)self)->count);
    PyMem_Free(((CallFigures *)self)->table);
    PyObject_Free(self);
    Py_DECREF(type);
}

static Py_ssize_t
figures_length(PyObject *self)
{
    return ((CallFigures *)self)->count;
}

PyObject *
new_figures(PyObject *self, PyObject *args)
{
    long long exact;
    double growth, smallest;
    if (!PyArg_ParseTuple(args, "Ldd:figures", &exact, &growth, &smallest))
        return NULL;
    if (exact < 1 || !(growth > 0) || !(smallest > 0))
        return PyErr_Format(PyExc_ValueError, "exact, growth and smallest must be positive");
    CallFigures *made = PyObject_New(CallFigures, state.figures_type);
    if (!made)
        return NULL;
    made->entries = NULL;
    made->table = NULL;
    made->count = made->capacity = made->slots = 0;
    made->added = 0;
    made->exact = exact;
    made->growth = growth;
    made->smallest = smallest;
    return (PyObject *)made;
}

/* ------------------------------------------------------------------------------------------------------------ the table */
static size_t
slot_of(const CallFigures *figures, const PyObject *info, int backward)
{
    uint64_t mixed = ((uint64_t)(uintptr_t)info >> 4) * 0x9E3779B97F4A7C15ULL + (uint64_t)backward;
    return (size_t)(mixed >> 20) & (size_t)(figures->slots - 1);
}

static int
grow_table(CallFigures *figures)
{
    Py_ssize_t slots = figures->slots ? 2 * figures->slots : 64;
    int32_t *table = PyMem_Malloc((size_t)slots * sizeof(int32_t));
    if (!table)
        return -1;
    memset(table, 0xFF, (size_t)slots * sizeof(int32_t));
    PyMem_Free(figures->table);
    figures->table = table;
    figures->slots = slots;
    for (Py_ssize_t place = 0; place < figures->count; place++) {
        size_t slot = slot_of(figures, figures->entries[place].info, figures->entries[place].backward);
        while (table[slot] >= 0)
            slot = (slot + 1) & (size_t)(slots - 1);
        table[slot] = (int32_t)place;
    }
    return 0;
}

/* The place of the entry of a module; -1 without an exception if there is no memory. */
static Py_ssize_t
entry_of(CallFigures *figures, PyObject *info, int backward, int32_t number)
{
    if (2 * (figures->count + 1) > figures->slots && grow_table(figures) < 0)
        return -1;
    size_t slot = slot_of(figures, info, backward);
    for (; figures->table[slot] >= 0; slot = (slot + 1) & (size_t)(figures->slots - 1)) {
        const Entry *entry = &figures->entries[figures->table[slot]];
        if (entry->info == info && entry->backward == backward)
            return figures->table[slot];
    }
    if (figures->count == figures->capacity) {
        Py_ssize_t capacity = figures->capacity ? 2 * figures->capacity : 64;
        Entry *entries = PyMem_Realloc(figures->entries, (size_t)capacity * sizeof(Entry));
        if (!entries)
            return -1;
        figures->entries = entries;
        figures->capacity = capacity;
    }
    Entry *entry = &figures->entries[figures->count];
    memset(entry, 0, sizeof(Entry));
    entry->info = owned(info);
    entry->backward = backward;
    entry->first = number;
    entry->least = HUGE_VAL;
    figures->table[slot] = (int32_t)figures->count;
    return figures->count++;
}

/* ---------------------------------------------------------------------------------------------------------- percentiles */
/* Count a value in its bucket, as Quantiles does. */
static int
count_value(const CallFigures *figures, Entry *entry, double value)
{
    if (!(value >= figures->smallest)) {
        entry->zeros++;
        return 0;
    }
    int64_t index = (int64_t)ceil(log(value) / figures->growth);
    if (!entry->buckets || index < entry->lowest || index >= entry->lowest + entry->width) {
        int64_t lowest = index, end = index + 1;
        if (entry->buckets) {
            lowest = index < entry->lowest ? index : entry->lowest;
            end = index >= entry->lowest + entry->width ? index + 1 : entry->lowest + entry->width;
        }
        lowest -= 8;
        end += 8;
        int64_t *buckets = PyMem_Calloc((size_t)(end - lowest), sizeof(int64_t));
        if (!buckets)
            return -1;
        if (entry->buckets)
            memcpy(buckets + (entry->lowest - lowest), entry->buckets, (size_t)entry->width * sizeof(int64_t));
        PyMem_Free(entry->buckets);
        entry->buckets = buckets;
        entry->lowest = lowest;
        entry->width = end - lowest;
    }
    entry->buckets[index - entry->lowest]++;
    return 0;
}

static int
take_value(const CallFigures *figures, Entry *entry, double value)
{
    if (entry->timed > figures->exact)
        return count_value(figures, entry, value);
    if (entry->kept == entry->capacity) {
        int64_t capacity = entry->capacity ? 2 * entry->capacity : 8;
        double *values = PyMem_Realloc(entry->values, (size_t)capacity * sizeof(double));
        if (!values)
            return -1;
        entry->values = values;
        entry->capacity = capacity;
    }
    entry->values[entry->kept++] = value;
    return 0;
}

/* One value more than are kept: all are counted in buckets from now on. */
static int
start_buckets(const CallFigures *figures, Entry *entry)
{
    int done = 0;
    for (int64_t place = 0; place < entry->kept && !done; place++)
        done = count_value(figures, entry, entry->values[place]);
    PyMem_Free(entry->values);
    entry->values = NULL;
    entry->kept = entry->capacity = 0;
    return done;
}

/* ------------------------------------------------------------------------------------------------------------------- in */
static int
take_call(const CallFigures *figures, Entry *entry, double seconds, double device)
{
    double measured = device < 0 ? seconds : device;
    entry->host += seconds;
    entry->device += measured;
    entry->measured += device >= 0;
    entry->least = measured < entry->least ? measured : entry->least;
    entry->greatest = measured > entry->greatest ? measured : entry->greatest;
    if (++entry->timed == figures->exact + 1 && start_buckets(figures, entry) < 0)
        return -1;
    return take_value(figures, entry, measured);
}

/* Seconds on the device of a call, below 0 if it was not measured. */
static double
device_seconds(PyObject *device, int32_t number)
{
    PyObject *key = PyLong_FromLong(number);
    PyObject *found = key ? PyDict_GetItemWithError(device, key) : NULL;
    Py_XDECREF(key);
    if (!found)
        return PyErr_Occurred() ? NAN : -1.0;
    double seconds = PyFloat_AsDouble(found);
    if (seconds == -1.0 && PyErr_Occurred())
        return NAN;
    return seconds < 0 ? 0.0 : seconds;
}

static int
add_rows(CallFigures *figures, const Calls *calls, PyObject *device, int backward, const int32_t *places, int64_t least, double above[2],
         Py_ssize_t *timed, int64_t width)
{
    for (Py_ssize_t at = 0; at < calls->count; at++) {
        const Row *row = &calls->rows[at];
        Entry *entry = &figures->entries[places[row->number - least]];
        entry->calls++;
        entry->last = ++figures->added;
        PyObject *inputs = entry->inputs, *outputs = entry->outputs;
        entry->inputs = owned(row->inputs);
        entry->outputs = owned(row->outputs);
        Py_XDECREF(inputs);
        Py_XDECREF(outputs);
        if (row->start > row->end)
            continue;
        double seconds = (double)(row->end - row->start) / 1e9, measured = -1.0;
        if (device && isnan(measured = device_seconds(device, row->number)))
            return -1;
        if (take_call(figures, entry, seconds, measured) < 0) {
            PyErr_NoMemory();
            return -1;
        }
        int64_t around = (int64_t)row->parent - least;
        int inner = around >= 0 && around < width && places[around] >= 0;
        double *inside = inner ? &figures->entries[places[around]].inside : &above[0];
        double *device_inside = inner ? &figures->entries[places[around]].device_inside : &above[1];
        *inside += seconds;
        *device_inside += measured < 0 ? seconds : measured;
        ++*timed;
    }
    return 0;
}

/* (calls, device times or None, whether they are backward calls) -> (calls with times, seconds and device seconds of those directly under
 * the pass, places of calls with statistics); None if their numbers lie far apart, and nothing was added. */
static PyObject *
figures_add(PyObject *self, PyObject *args)
{
    CallFigures *figures = (CallFigures *)self;
    Calls *calls;
    PyObject *device, *special = NULL, *added = NULL;
    int backward;
    if (!PyArg_ParseTuple(args, "O!Op:add", state.calls_type, &calls, &device, &backward))
        return NULL;
    if (device != Py_None && !PyDict_Check(device)) {
        PyErr_SetString(PyExc_TypeError, "device times are a dictionary or None");
        return NULL;
    }
    int64_t least = INT64_MAX, most = INT64_MIN;
    for (Py_ssize_t at = 0; at < calls->count; at++) {
        least = calls->rows[at].number < least ? calls->rows[at].number : least;
        most = calls->rows[at].number > most ? calls->rows[at].number : most;
    }
    int64_t width = calls->count ? most - least + 1 : 0;
    if (width > MOST_APART * (int64_t)calls->count + ALWAYS_APART)
        return owned(Py_None);
    int32_t *places = PyMem_Malloc((size_t)(width ? width : 1) * sizeof(int32_t));
    if (!places)
        return PyErr_NoMemory();
    memset(places, 0xFF, (size_t)width * sizeof(int32_t));
    double above[2] = {0.0, 0.0};
    Py_ssize_t timed = 0;
    if (!(special = PyList_New(0)))
        goto done;
    for (Py_ssize_t at = 0; at < calls->count; at++) {
        const Row *row = &calls->rows[at];
        Py_ssize_t place = entry_of(figures, row->info, backward, row->number);
        if (place < 0) {
            PyErr_NoMemory();
            goto done;
        }
        places[row->number - least] = (int32_t)place;
        if (row->statistics >= 0) {
            PyObject *number = PyLong_FromSsize_t(at);
            int kept = number ? PyList_Append(special, number) : -1;
            Py_XDECREF(number);
            if (kept < 0)
                goto done;
        }
    }
    if (add_rows(figures, calls, device == Py_None ? NULL : device, backward, places, least, above, &timed, width) == 0)
        added = Py_BuildValue("nddO", timed, above[0], above[1], special);
done:
    PyMem_Free(places);
    Py_XDECREF(special);
    return added;
}

/* ------------------------------------------------------------------------------------------------------------------ out */
/* Counts by index of the bucket, or None while there are few values. */
static PyObject *
buckets_of(const Entry *entry, int64_t exact)
{
    if (entry->timed <= exact)
        return owned(Py_None);
    PyObject *counts = PyDict_New();
    for (int64_t place = 0; counts && place < entry->width; place++) {
        if (!entry->buckets[place])
            continue;
        PyObject *index = PyLong_FromLongLong(entry->lowest + place), *count = PyLong_FromLongLong(entry->buckets[place]);
        if (!index || !count || PyDict_SetItem(counts, index, count) < 0)
            Py_CLEAR(counts);
        Py_XDECREF(index);
        Py_XDECREF(count);
    }
    return counts;
}

static PyObject *
row_of(const Entry *entry, int64_t exact)
{
    PyObject *buckets = buckets_of(entry, exact);
    PyObject *values = buckets ? PyBytes_FromStringAndSize((const char *)entry->values, (Py_ssize_t)entry->kept * (Py_ssize_t)sizeof(double)) : NULL;
    PyObject *row = NULL;
    if (values)
        row = Py_BuildValue("OOiLLOOLLddddddNLN", entry->info, entry->backward ? Py_True : Py_False, (int)entry->first, (long long)entry->last,
                            (long long)entry->calls,
                            entry->inputs ? entry->inputs : Py_None, entry->outputs ? entry->outputs : Py_None, (long long)entry->timed,
                            (long long)entry->measured, entry->host, entry->device, entry->inside, entry->device_inside, entry->least,
                            entry->greatest, values, (long long)entry->zeros, buckets);
    else
        Py_XDECREF(buckets);
    return row;
}

/* All rows, which are forgotten here. */
static PyObject *
figures_take(PyObject *self, PyObject *unused)
{
    CallFigures *figures = (CallFigures *)self;
    Entry *entries = figures->entries;
    Py_ssize_t count = figures->count;
    /* Making the rows may run a collection of garbage, and with it whatever the program does there. */
    PyMem_Free(figures->table);
    figures->entries = NULL;
    figures->table = NULL;
    figures->count = figures->capacity = figures->slots = 0;
    PyObject *rows = PyList_New(count);
    for (Py_ssize_t place = 0; rows && place < count; place++) {
        PyObject *row = row_of(&entries[place], figures->exact);
        if (!row || PyList_SetItem(rows, place, row) < 0)
            Py_CLEAR(rows);
    }
    drop_entries(entries, count);
    return rows;
}

static PyMethodDef figures_methods[] = {
    {"add", figures_add, METH_VARARGS, NULL},
    {"take", figures_take, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot figures_slots[] = {
    {Py_tp_doc, (void *)"See summaries.calls."},
    {Py_tp_dealloc, figures_dealloc},
    {Py_tp_methods, figures_methods},
    {Py_sq_length, figures_length},
    {0, NULL},
};

PyType_Spec figures_spec = {"inferspan.capture.modules._recorder.CallFigures", sizeof(CallFigures), 0, Py_TPFLAGS_DEFAULT, figures_slots};
