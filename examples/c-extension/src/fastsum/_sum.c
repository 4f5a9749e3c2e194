#include <Python.h>

static PyObject *total(PyObject *module, PyObject *argument)
{
    unsigned long long sum = 0, last = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred())
        return NULL;
    for (unsigned long long number = 1; number <= last; number++)
        sum += number;
    return PyLong_FromUnsignedLongLong(sum);
}

static PyMethodDef functions[] = {
    {"total", total, METH_O, "Return the sum of the numbers from 1 to the argument."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_sum", NULL, -1, functions};

PyMODINIT_FUNC PyInit__sum(void)
{
    return PyModule_Create(&definition);
}
