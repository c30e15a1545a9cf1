"""A checkpoint under the names that this reference spells, over one under the names of the file."""

import collections.abc


class Renamed(collections.abc.MutableMapping):
    def __init__(self, model, tensors):
        self.tensors, self.published = tensors, model.published

    def __getitem__(self, name):
        return self.tensors[self.published(name)]

    def __setitem__(self, name, array):
        self.tensors[self.published(name)] = array

    def __delitem__(self, name):
        del self.tensors[self.published(name)]

    def __contains__(self, name):
        return self.published(name) in self.tensors

    def __iter__(self):
        return iter(self.tensors)

    def __len__(self):
        return len(self.tensors)
