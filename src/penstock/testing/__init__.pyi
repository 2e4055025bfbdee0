from penstock.testing.loader_laws import assert_covers as assert_covers
from penstock.testing.loader_laws import assert_resumes_everywhere as assert_resumes_everywhere
from penstock.testing.loader_laws import assert_topology_free as assert_topology_free
from penstock.testing.loader_laws import same_batch as same_batch
from penstock.testing.source_contract import SourceContract as SourceContract
from penstock.testing.source_contract import WatchedSource as WatchedSource
