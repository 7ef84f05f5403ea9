"""How pytest finds the plugin: it looks in here at every start, and goes on only if asked to.

The options of a conftest.py would come too late: pytest reads its command line before it looks
into a package that --pyargs names.
"""


def pytest_load_initial_conftests(early_config, args):
    if any(str(word).startswith("collectives.verify") for word in args):
        early_config.pluginmanager.import_plugin("collectives.verify.plugin")
