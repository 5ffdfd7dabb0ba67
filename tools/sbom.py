#!/usr/bin/python3
"""tools/sbom.py PACKAGES: prints the bill of materials of a release, in SPDX 2.3, for the checkout that it is started in.

PACKAGES is the packages.tsv of tools/old-glibc. The output depends on it, on the commit and on the installed headers alone.
"""

import json
import os
import re
import subprocess
import sys
import time

# Compiled in from headers: Debian's package, licence.
HEADERS = [('nlohmann-json3-dev', 'MIT'), ('libxxhash-dev', 'BSD-2-Clause')]


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def package(name, version, licence, **more):
    return {
        'SPDXID': 'SPDXRef-' + re.sub(r'[^A-Za-z0-9.]', '-', name),
        'name': name,
        'versionInfo': version,
        'downloadLocation': 'NOASSERTION',
        'filesAnalyzed': False,
        'licenseConcluded': licence,
        'licenseDeclared': licence,
        'copyrightText': 'NOASSERTION',
        'supplier': 'NOASSERTION',
        **more,
    }


def debian(name, version, licence):
    return package(name, version, licence, externalRefs=[{
        'referenceCategory': 'PACKAGE-MANAGER',
        'referenceType': 'purl',
        'referenceLocator': f'pkg:deb/debian/{name}@{version}'.replace('+', '%2B'),
    }])


def cuda():
    """The CUDA runtime, if nvcc is there to compile it in."""
    try:
        nvcc = os.path.join(os.environ.get('CUDA_HOME', '/usr/local/cuda'), 'bin/nvcc')
        release = re.search(r'V([\d.]+)', output_of(nvcc, '--version'))[1]
    except FileNotFoundError:
        return []
    return [package('cudart-static', release, 'LicenseRef-NVIDIA-CUDA-EULA')]


def main():
    with open(sys.argv[1], encoding='ascii') as file:
        linked = [debian(*line.rstrip('\n').split('\t')) for line in file]
    linked += [debian(name, output_of('dpkg-query', '-W', '-f', '${Version}', name), licence) for name, licence in HEADERS]
    linked += [package('xla-ffi-header', '0.3', 'Apache-2.0')] + cuda()
    with open('tools/torch-libraries', encoding='ascii') as file:
        torch = re.search(r'^releases=\((.*)\)', file.read(), re.M)[1].split()
    linked += [package(f'pytorch-headers-{release}', release, 'BSD-3-Clause') for release in torch]
    commit, seconds = output_of('git', 'log', '-1', '--format=%H %ct').split()
    with open('capi/lockstep.h', encoding='ascii') as file:
        version = '.'.join(re.findall(r'#define LOCKSTEP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)', file.read()))
    ours = package('lockstep', version, 'Apache-2.0', sourceInfo=f'built from commit {commit}')
    document = {
        'spdxVersion': 'SPDX-2.3',
        'dataLicense': 'CC0-1.0',
        'SPDXID': 'SPDXRef-DOCUMENT',
        'name': f'lockstep-{version}',
        'documentNamespace': f'https://spdx.org/spdxdocs/lockstep-{version}-{commit}',
        'creationInfo': {
            'created': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(int(seconds))),
            'creators': ['Tool: lockstep-tools-sbom'],
        },
        'packages': [ours] + linked,
        'hasExtractedLicensingInfos': [{
            'licenseId': 'LicenseRef-NVIDIA-CUDA-EULA',
            'name': 'CUDA Toolkit End User License Agreement',
            'extractedText': 'The agreement is in the CUDA toolkit (EULA.txt), which allows to distribute its runtime with an application.',
        }],
        'relationships': [{
            'spdxElementId': 'SPDXRef-DOCUMENT',
            'relationshipType': 'DESCRIBES',
            'relatedSpdxElement': ours['SPDXID'],
        }] + [{
            'spdxElementId': ours['SPDXID'],
            'relationshipType': 'STATIC_LINK',
            'relatedSpdxElement': other['SPDXID'],
        } for other in linked],
    }
    json.dump(document, sys.stdout, indent=1)
    print()


if __name__ == '__main__':
    main()
